// A memory with one write and one read port. Data come a cycle after `re`, and stay until the next.
// Lanes of a word are written on their own.
module vta_ram #(
    parameter int DEPTH = 16,
    parameter int LANES = 1,
    parameter int LANE_BITS = 8,
    parameter int AW = 4
) (
    input  logic                       clk,
    input  logic [LANES-1:0]           we,
    input  logic [AW-1:0]              waddr,
    input  logic [LANES*LANE_BITS-1:0] wdata,
    input  logic                       re,
    input  logic [AW-1:0]              raddr,
    output logic [LANES*LANE_BITS-1:0] rdata
);
  genvar lane;
  generate
    for (lane = 0; lane < LANES; lane = lane + 1) begin : g_lane
      logic [LANE_BITS-1:0] mem[0:DEPTH-1];
      logic [LANE_BITS-1:0] q;
      always_ff @(posedge clk) begin
        if (we[lane]) mem[waddr] <= wdata[lane*LANE_BITS+:LANE_BITS];
        if (re) q <= mem[raddr];
      end
      assign rdata[lane*LANE_BITS+:LANE_BITS] = q;
    end
  endgenerate
endmodule
