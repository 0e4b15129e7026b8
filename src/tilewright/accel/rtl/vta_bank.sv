// A bank of accumulators: one read and one write a cycle; a read of what is being written gives the
// new value, so that steps of one unit may follow each other at once.
module vta_bank #(
    parameter int DEPTH = 16,
    parameter int BITS = 32,
    parameter int AW = 4
) (
    input  logic            clk,
    input  logic            we,
    input  logic [AW-1:0]   waddr,
    input  logic [BITS-1:0] wdata,
    input  logic            re,
    input  logic [AW-1:0]   raddr,
    output logic [BITS-1:0] rdata
);
  logic [BITS-1:0] mem[0:DEPTH-1];
  logic [BITS-1:0] q, fresh;
  logic is_fresh;
  always_ff @(posedge clk) begin
    if (we) mem[waddr] <= wdata;
    if (re) begin
      q <= mem[raddr];
      fresh <= wdata;
      is_fresh <= we && waddr == raddr;
    end
  end
  assign rdata = is_fresh ? fresh : q;
endmodule
