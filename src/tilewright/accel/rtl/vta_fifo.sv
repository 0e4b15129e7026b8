// A short queue whose head can be seen. The head has a register of its own: what looks at it does
// not wait for the memory behind.
module vta_fifo #(
    parameter int BITS = 8,
    parameter int LOG_DEPTH = 2
) (
    input  logic                 clk,
    input  logic                 rst,
    input  logic                 push,
    input  logic [BITS-1:0]      in,
    input  logic                 pop,
    output logic [BITS-1:0]      head,
    output logic                 valid,
    output logic [LOG_DEPTH:0]   count
);
  logic [BITS-1:0] mem[0:(1<<LOG_DEPTH)-1];
  logic [LOG_DEPTH-1:0] second, last;  // behind the head; where the next one goes
  logic is_one;
  assign is_one = count == (LOG_DEPTH + 1)'(1);
  always_ff @(posedge clk) begin
    if (push) mem[last] <= in;
    if (pop || !valid) head <= !valid || is_one ? in : mem[second];
    if (rst) begin
      second <= LOG_DEPTH'(1);
      last <= '0;
      count <= '0;
      valid <= 1'b0;
    end else begin
      if (push) last <= last + 1'b1;
      if (pop) second <= second + 1'b1;
      if (push && !pop) count <= count + 1'b1;
      if (pop && !push) count <= count - 1'b1;
      valid <= push || (valid && !(pop && is_one));
    end
  end
endmodule
