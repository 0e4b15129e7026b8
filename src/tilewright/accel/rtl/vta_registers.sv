// The registers of the host, behind AXI4-Lite. Words of 32 bits:
//
//   00 control: bit 0 starts, bit 1 resets     04 status: 0 running, 1 done, 2 trap, 15:8 its code
//   08 task of a trap                          0C time-out in cycles
//   10, 14 address of the stream               18 its tasks       1C number of buffers
//   20.. counters of 64 bits: cycles, GEMM steps, beats read, beats written
//   40 a mark and the version
//   100 + 16 k: buffer k: address (2 words), bytes (2 words; bit 31 of the upper one: writable)
module vta_registers (
    input  logic        clk,
    input  logic        rst,
    input  logic        s_awvalid,
    output logic        s_awready,
    input  logic [11:0] s_awaddr,
    input  logic        s_wvalid,
    output logic        s_wready,
    input  logic [31:0] s_wdata,
    output logic        s_bvalid,
    input  logic        s_bready,
    input  logic        s_arvalid,
    output logic        s_arready,
    input  logic [11:0] s_araddr,
    output logic        s_rvalid,
    input  logic        s_rready,
    output logic [31:0] s_rdata,
    output logic        start,
    output logic        reset,
    output logic [31:0] timeout,
    output logic [63:0] stream,
    output logic [31:0] tasks,
    output logic [4:0]  buffers,
    output logic [15:0] writable,
    // the buffers that units ask for
    input  logic [3:0]  base_a,
    output logic [63:0] address_a,
    output logic [49:0] bytes_a,
    input  logic [3:0]  base_b,
    output logic [63:0] address_b,
    output logic [49:0] bytes_b,
    input  logic [3:0]  base_c,
    output logic [63:0] address_c,
    output logic [49:0] bytes_c,
    input  logic [31:0] status,
    input  logic [31:0] trap_task,
    input  logic [255:0] counters
);
  logic [63:0] address[0:15];
  logic [49:0] bytes[0:15];
  assign address_a = address[base_a];
  assign bytes_a = bytes[base_a];
  assign address_b = address[base_b];
  assign bytes_b = bytes[base_b];
  assign address_c = address[base_c];
  assign bytes_c = bytes[base_c];

  logic write;
  logic [3:0] which;
  assign write = s_awvalid && s_wvalid && !s_bvalid && !rst;
  assign s_awready = write;
  assign s_wready = write;
  assign which = s_awaddr[7:4];
  always_ff @(posedge clk) begin
    start <= 1'b0;
    reset <= 1'b0;
    if (write) begin
      if (s_awaddr[8]) begin
        case (s_awaddr[3:2])
          2'd0: address[which][31:0] <= s_wdata;
          2'd1: address[which][63:32] <= s_wdata;
          2'd2: bytes[which][31:0] <= s_wdata;
          default: begin
            bytes[which][49:32] <= s_wdata[17:0];
            writable[which] <= s_wdata[31];
          end
        endcase
      end else begin
        case (s_awaddr[7:2])
          6'h00: {reset, start} <= s_wdata[1:0];
          6'h03: timeout <= s_wdata;
          6'h04: stream[31:0] <= s_wdata;
          6'h05: stream[63:32] <= s_wdata;
          6'h06: tasks <= s_wdata;
          6'h07: buffers <= s_wdata[4:0];
          default: ;
        endcase
      end
    end
    if (rst) s_bvalid <= 1'b0;
    else if (write) s_bvalid <= 1'b1;
    else if (s_bready) s_bvalid <= 1'b0;
  end

  assign s_arready = s_arvalid && !s_rvalid && !rst;
  always_ff @(posedge clk) begin
    if (s_arready) begin
      case (s_araddr[11:2])
        10'h001: s_rdata <= status;
        10'h002: s_rdata <= trap_task;
        10'h008: s_rdata <= counters[31:0];
        10'h009: s_rdata <= counters[63:32];
        10'h00A: s_rdata <= counters[95:64];
        10'h00B: s_rdata <= counters[127:96];
        10'h00C: s_rdata <= counters[159:128];
        10'h00D: s_rdata <= counters[191:160];
        10'h00E: s_rdata <= counters[223:192];
        10'h00F: s_rdata <= counters[255:224];
        10'h010: s_rdata <= 32'h56540001;
        default: s_rdata <= '0;
      endcase
    end
    if (rst) s_rvalid <= 1'b0;
    else if (s_arready) s_rvalid <= 1'b1;
    else if (s_rready) s_rvalid <= 1'b0;
  end

  logic unused;
  assign unused = &{1'b0, s_awaddr, s_araddr[1:0]};
endmodule
