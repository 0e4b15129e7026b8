// The accelerator with five pins, for any board: its ports are the registers of two shift registers.
// What `serial_in` brings are its inputs; with `capture` its outputs are taken, else they go out.
module vta_serial (
    input  logic clk,
    input  logic resetn,
    input  logic serial_in,
    input  logic capture,
    output logic serial_out
);
  localparam int BITS = vta_pkg::BUS_BITS;
  localparam int BYTES = vta_pkg::BUS_BYTES;
  localparam int INPUTS = 71 + BITS;
  localparam int OUTPUTS = 213 + BITS + BYTES;
  logic started, is_captured;
  logic [INPUTS-1:0] inputs;
  logic [OUTPUTS-1:0] outputs, held, shifted;
  assign serial_out = shifted[0];
  always_ff @(posedge clk) begin
    started <= resetn;
    is_captured <= capture;
    inputs <= {serial_in, inputs[INPUTS-1:1]};
    held <= outputs;
    shifted <= is_captured ? held : {1'b0, shifted[OUTPUTS-1:1]};
  end

  logic s_awvalid, s_wvalid, s_bready, s_arvalid, s_rready, m_arready, m_rvalid, m_rlast, m_awready;
  logic m_wready, m_bvalid, s_awready, s_wready, s_bvalid, s_arready, s_rvalid, m_arvalid, m_rready;
  logic m_awvalid, m_wvalid, m_wlast, m_bready, irq, running;
  logic [11:0] s_awaddr, s_araddr;
  logic [31:0] s_wdata, s_rdata;
  logic [1:0] s_bresp, s_rresp, m_rresp, m_bresp, m_arburst, m_awburst;
  logic [63:0] m_araddr, m_awaddr;
  logic [7:0] m_arlen, m_awlen;
  logic [2:0] m_arsize, m_awsize;
  logic [BITS-1:0] m_rdata, m_wdata;
  logic [BYTES-1:0] m_wstrb;
  logic [4:0] begins, ends;
  assign {s_awvalid, s_wvalid, s_bready, s_arvalid, s_rready, m_arready, m_rvalid, m_rlast,
          m_awready, m_wready, m_bvalid, s_awaddr, s_araddr, s_wdata, m_rresp, m_bresp, m_rdata}
      = inputs;
  assign outputs = {s_awready, s_wready, s_bvalid, s_arready, s_rvalid, m_arvalid, m_rready,
                    m_awvalid, m_wvalid, m_wlast, m_bready, irq, running, s_rdata, s_bresp, s_rresp,
                    m_arburst, m_awburst, m_arsize, m_awsize, m_arlen, m_awlen, m_araddr, m_awaddr,
                    m_wdata, m_wstrb, begins, ends};
  vta_top accelerator (
      .clk(clk), .resetn(started),
      .s_awvalid(s_awvalid), .s_awready(s_awready), .s_awaddr(s_awaddr), .s_wvalid(s_wvalid),
      .s_wready(s_wready), .s_wdata(s_wdata), .s_bvalid(s_bvalid), .s_bready(s_bready),
      .s_bresp(s_bresp), .s_arvalid(s_arvalid), .s_arready(s_arready), .s_araddr(s_araddr),
      .s_rvalid(s_rvalid), .s_rready(s_rready), .s_rdata(s_rdata), .s_rresp(s_rresp),
      .m_arvalid(m_arvalid), .m_arready(m_arready), .m_araddr(m_araddr), .m_arlen(m_arlen),
      .m_arsize(m_arsize), .m_arburst(m_arburst), .m_rvalid(m_rvalid), .m_rready(m_rready),
      .m_rdata(m_rdata), .m_rresp(m_rresp), .m_rlast(m_rlast), .m_awvalid(m_awvalid),
      .m_awready(m_awready), .m_awaddr(m_awaddr), .m_awlen(m_awlen), .m_awsize(m_awsize),
      .m_awburst(m_awburst), .m_wvalid(m_wvalid), .m_wready(m_wready), .m_wdata(m_wdata),
      .m_wstrb(m_wstrb), .m_wlast(m_wlast), .m_bvalid(m_bvalid), .m_bready(m_bready),
      .m_bresp(m_bresp), .irq(irq), .running(running), .begins(begins), .ends(ends)
  );
endmodule
