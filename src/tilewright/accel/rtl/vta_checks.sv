// Rules of AXI4 and of the units, watched while simulating: a burst stays in its 4 KB, what is offered
// stays until it is taken, the last beat is marked, no bank is used by two.
module vta_checks (
    input logic        clk,
    input logic        rst,
    input logic        arvalid,
    input logic        arready,
    input logic [63:0] araddr,
    input logic [7:0]  arlen,
    input logic        awvalid,
    input logic        awready,
    input logic [63:0] awaddr,
    input logic [7:0]  awlen,
    input logic        wvalid,
    input logic        wready,
    input logic [vta_pkg::BUS_BITS-1:0] wdata,
    input logic        wlast,
    input logic        rvalid,
    input logic        rready,
    input logic        rlast,
    input logic        r_last,  // as the unit that takes it counts
    input logic        r_counts,
    input logic [3:0]  gemm_own,
    input logic [3:0]  alu_own,
    input logic [3:0]  store_own
);
`ifndef SYNTHESIS
  localparam int LOG_BUS = vta_pkg::LOG_BUS_BYTES;
  logic ar_waits, aw_waits, w_waits;
  logic [63:0] araddr_was, awaddr_was;
  logic [vta_pkg::BUS_BITS-1:0] wdata_was;
  logic [8:0] beats_left;  // of the write that has begun
  function automatic logic crosses(input logic [11:0] place, input logic [7:0] len);
    crosses = {1'b0, place} + (13'(len) << LOG_BUS) >= 13'd4096;
  endfunction
  always_ff @(posedge clk) begin
    if (rst) begin
      {ar_waits, aw_waits, w_waits} <= '0;
      beats_left <= '0;
    end else begin
      ar_waits <= arvalid && !arready;
      aw_waits <= awvalid && !awready;
      w_waits <= wvalid && !wready;
      araddr_was <= araddr;
      awaddr_was <= awaddr;
      wdata_was <= wdata;
      if (awvalid && awready) beats_left <= 9'(awlen) + 1'b1;
      else if (wvalid && wready) beats_left <= beats_left - 1'b1;
      assert (!arvalid || !crosses(araddr[11:0], arlen));
      assert (!awvalid || !crosses(awaddr[11:0], awlen));
      assert (!ar_waits || (arvalid && araddr == araddr_was));
      assert (!aw_waits || (awvalid && awaddr == awaddr_was));
      assert (!w_waits || (wvalid && wdata == wdata_was));
      assert (!wvalid || wlast == (beats_left == 9'd1));
      assert (!(rvalid && rready && r_counts) || rlast == r_last);
      assert ((gemm_own & alu_own) == '0);
      assert ((gemm_own & store_own) == '0);
      assert ((alu_own & store_own) == '0);
    end
  end
`else
  logic unused;
  assign unused = &{1'b0, clk, rst, arvalid, arready, araddr, arlen, awvalid, awready, awaddr, awlen,
                    wvalid, wready, wdata, wlast, rvalid, rready, rlast, r_last, r_counts, gemm_own,
                    alu_own, store_own};
`endif
endmodule
