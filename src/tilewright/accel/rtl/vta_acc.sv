// The accumulators: four banks of one read and one write port each. GEMM, ALU and store use the banks
// that they own; what aux writes goes first, its owner stands still meanwhile.
module vta_acc (
    input  logic        clk,
    input  logic        gemm_re,
    input  logic [vta_pkg::ACC_AW-1:0] gemm_raddr,
    output logic [vta_pkg::ACC_BITS-1:0] gemm_rdata,
    input  logic        gemm_we,
    input  logic        gemm_writes,  // unless it stands still
    input  logic [vta_pkg::ACC_AW-1:0] gemm_waddr,
    input  logic [vta_pkg::ACC_BITS-1:0] gemm_wdata,
    input  logic [3:0]  alu_re,
    input  logic [4*vta_pkg::BANK_AW-1:0] alu_raddr,
    output logic [4*vta_pkg::ACC_BITS-1:0] alu_rdata,
    input  logic        alu_we,
    input  logic [vta_pkg::ACC_AW-1:0] alu_waddr,
    input  logic [vta_pkg::ACC_BITS-1:0] alu_wdata,
    input  logic        store_re,
    input  logic [vta_pkg::ACC_AW-1:0] store_raddr,
    output logic [vta_pkg::ACC_BITS-1:0] store_rdata,
    input  logic [3:0]  aux_bank,  // that is written
    input  logic [vta_pkg::BANK_AW-1:0] aux_waddr,  // in it
    input  logic [vta_pkg::ACC_BITS-1:0] aux_wdata
);
  localparam int AB = vta_pkg::ACC_BITS;
  localparam int AAW = vta_pkg::ACC_AW;
  localparam int BAW = vta_pkg::BANK_AW;

  genvar bank;
  generate
    for (bank = 0; bank < 4; bank = bank + 1) begin : g_bank
      logic by_gemm, by_store, of_gemm, w_alu;
      assign by_gemm = gemm_re && gemm_raddr[AAW-1-:2] == 2'(bank);
      assign by_store = store_re && store_raddr[AAW-1-:2] == 2'(bank);
      // Whose data these are does not depend on who stands still.
      assign of_gemm = gemm_writes && gemm_waddr[AAW-1-:2] == 2'(bank);
      assign w_alu = alu_we && alu_waddr[AAW-1-:2] == 2'(bank);
      vta_bank #(
          .DEPTH(vta_pkg::ACC_DEPTH / 4), .BITS(AB), .AW(BAW)
      ) memory (
          .clk(clk),
          .we((gemm_we && of_gemm) || w_alu || aux_bank[bank]),
          .waddr(aux_bank[bank] ? aux_waddr : of_gemm ? gemm_waddr[BAW-1:0] :
                 alu_waddr[BAW-1:0]),
          .wdata(!aux_bank[bank] && !of_gemm ? alu_wdata : aux_bank[bank] ? aux_wdata : gemm_wdata),
          .re(by_gemm || by_store || alu_re[bank]),
          .raddr(by_gemm ? gemm_raddr[BAW-1:0] : by_store ? store_raddr[BAW-1:0] :
                 alu_raddr[bank*BAW+:BAW]),
          .rdata(alu_rdata[bank*AB+:AB])
      );
    end
  endgenerate

  // Whose bank a datum comes from was decided when it was read.
  logic [1:0] gemm_bank, store_bank;
  always_ff @(posedge clk) begin
    if (gemm_re) gemm_bank <= gemm_raddr[AAW-1-:2];
    if (store_re) store_bank <= store_raddr[AAW-1-:2];
  end
  assign gemm_rdata = alu_rdata[gemm_bank*AB+:AB];
  assign store_rdata = alu_rdata[store_bank*AB+:AB];
endmodule
