// A short queue whose head can be seen.
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
  logic [LOG_DEPTH-1:0] first, last;
  always_ff @(posedge clk) begin
    if (push) mem[last] <= in;
    if (rst) begin
      first <= '0;
      last <= '0;
      count <= '0;
    end else begin
      if (push) last <= last + 1'b1;
      if (pop) first <= first + 1'b1;
      if (push && !pop) count <= count + 1'b1;
      if (pop && !push) count <= count - 1'b1;
    end
  end
  assign head = mem[first];
  assign valid = count != '0;
endmodule
