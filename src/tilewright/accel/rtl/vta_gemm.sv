// The GEMM unit: acc[dst] += inp[src] * transpose(wgt[aux]), a step a cycle.
//
// Stages: 0 loops, microcode is read; 1 addresses, operands are read; 2 they come; 3 products;
// 4, 5 sums; 5 the accumulator is read, 6 it comes, 7 it is added to and written. What a step writes
// while another reads it, or in the cycle after that, is forwarded.
module vta_gemm (
    input  logic        clk,
    input  logic        rst,
    input  logic        en,
    input  logic        start,
    input  logic [vta_pkg::GEMM_BITS-1:0] task_word,
    output logic        ready,
    output logic [3:0]  owned,
    output logic        done,
    output logic [4:0]  done_push,
    output logic        trap,
    output logic        stepped,
    // microcode, activations and weights are written by others
    input  logic        uop_we,
    input  logic [vta_pkg::UOP_AW-1:0] uop_waddr,
    input  logic [63:0] uop_wdata,
    input  logic [vta_pkg::INP_LANES-1:0] inp_we,
    input  logic [vta_pkg::INP_AW-1:0] inp_waddr,
    input  logic [vta_pkg::INP_BITS-1:0] inp_wdata,
    input  logic [vta_pkg::WGT_LANES-1:0] wgt_we,
    input  logic [vta_pkg::WGT_AW-1:0] wgt_waddr,
    input  logic [vta_pkg::WGT_BITS-1:0] wgt_wdata,
    // accumulators
    output logic        acc_re,
    output logic [vta_pkg::ACC_AW-1:0] acc_raddr,
    input  logic [vta_pkg::ACC_BITS-1:0] acc_rdata,
    output logic        acc_we,
    output logic        acc_writes,  // unless it stands still
    output logic [vta_pkg::ACC_AW-1:0] acc_waddr,
    output logic [vta_pkg::ACC_BITS-1:0] acc_wdata
);
  localparam int SW = vta_pkg::STEP_BITS;
  localparam int BATCH = vta_pkg::BATCH;
  localparam int BIN = vta_pkg::BLOCK_IN;
  localparam int BOUT = vta_pkg::BLOCK_OUT;
  localparam int AAW = vta_pkg::ACC_AW;
  localparam int PARTS = BIN >= 4 ? 4 : BIN;  // sums of stage 4, added up in stage 5
  localparam int PER_PART = BIN / PARTS;
  localparam int PW = 16 + $clog2(PER_PART);
  localparam int TW = 16 + $clog2(BIN);

  logic busy, last, null_step, no_range;
  logic [vta_pkg::UOP_BITS-1:0] uop;
  logic [SW-1:0] dst, src, aux;
  logic [4:0] at_zero;
  vta_steps #(
      .SW(SW)
  ) steps (
      .clk(clk), .rst(rst), .start(start), .next(busy && en),
      .fields(task_word[vta_pkg::GEMM_UBEGIN_AT+:vta_pkg::STEPS_BITS]), .busy(busy), .last(last),
      .null_step(null_step), .no_range(no_range), .uop(uop), .dst(dst), .src(src), .aux(aux), .at_zero(at_zero)
  );
  assign ready = !busy || last;

  logic init;
  logic [4:0] over, pushes;
  logic [3:0] banks;
  always_ff @(posedge clk) begin
    if (!busy || (last && en)) begin
      init <= task_word[vta_pkg::GEMM_INIT_AT];
      over <= task_word[vta_pkg::GEMM_OVER_AT+:5];
      pushes <= task_word[vta_pkg::GEMM_PUSH_AT+:5];
      banks <= task_word[vta_pkg::GEMM_BANKS_AT+:4];
    end
  end

  // What travels with a step: 1 to 7.
  logic v1, v2, v3, v4, v5, v6, v7;
  logic first1, first2, first3, first4, first5, first6;
  logic [7:1] ends;  // the last step of a task
  logic [4:0] push1, push2, push3, push4, push5, push6, push7;
  logic [3:0] own0, own1, own2, own3, own4, own5, own6;
  assign own0 = busy ? banks : '0;
  logic [AAW-1:0] dst2, dst3, dst4, dst5, dst6, dst7;
  logic [SW-1:0] base_dst, base_src, base_aux;
  logic [63:0] code;
  vta_ram #(
      .DEPTH(vta_pkg::UOP_DEPTH), .LANES(1), .LANE_BITS(64), .AW(vta_pkg::UOP_AW)
  ) microcode (
      .clk(clk), .we(uop_we), .waddr(uop_waddr), .wdata(uop_wdata), .re(en && busy),
      .raddr(uop[vta_pkg::UOP_AW-1:0]), .rdata(code)
  );

  logic [SW-1:0] dst_1, src_1, aux_1;
  assign dst_1 = base_dst + SW'(code[vta_pkg::UOP_DST_AT+:vta_pkg::UOP_DST_BITS]);
  assign src_1 = base_src + SW'(code[vta_pkg::UOP_SRC_AT+:vta_pkg::UOP_SRC_BITS]);
  assign aux_1 = base_aux + SW'(code[vta_pkg::UOP_AUX_AT+:vta_pkg::UOP_AUX_BITS]);
  logic [1:0] bank_1;
  assign bank_1 = dst_1[AAW-1:AAW-2];
  logic outside2;
  assign trap = (v2 && outside2) || (busy && no_range);
  assign stepped = v1 && en;

  logic [vta_pkg::INP_BITS-1:0] inp_q, inp_r;
  logic [vta_pkg::WGT_BITS-1:0] wgt_q, wgt_r;
  vta_ram #(
      .DEPTH(vta_pkg::INP_DEPTH), .LANES(vta_pkg::INP_LANES), .LANE_BITS(vta_pkg::INP_LANE_BITS),
      .AW(vta_pkg::INP_AW)
  ) inp (
      .clk(clk), .we(inp_we), .waddr(inp_waddr), .wdata(inp_wdata), .re(en && v1),
      .raddr(src_1[vta_pkg::INP_AW-1:0]), .rdata(inp_q)
  );
  vta_ram #(
      .DEPTH(vta_pkg::WGT_DEPTH), .LANES(vta_pkg::WGT_LANES), .LANE_BITS(vta_pkg::WGT_LANE_BITS),
      .AW(vta_pkg::WGT_AW)
  ) wgt (
      .clk(clk), .we(wgt_we), .waddr(wgt_waddr), .wdata(wgt_wdata), .re(en && v1),
      .raddr(aux_1[vta_pkg::WGT_AW-1:0]), .rdata(wgt_q)
  );

  logic [BATCH*BOUT*TW-1:0] sums;
  genvar b, o, p;
  generate
    for (b = 0; b < BATCH; b = b + 1) begin : g_batch
      // Two outputs share a multiplier: (w1 * 2**16 + w0) * a holds both products.
      for (o = 0; o < BOUT; o = o + 2) begin : g_out
        logic [BIN*16-1:0] low, high;  // products, stage 4
        logic [PARTS*PW-1:0] low_part, high_part;  // stage 5
        logic [TW-1:0] low_sum, high_sum;  // stage 6
        always_ff @(posedge clk) begin
          integer k;
          logic signed [24:0] pair;
          logic signed [7:0] a;
          logic signed [31:0] product;
          if (en && v3) begin
            for (k = 0; k < BIN; k = k + 1) begin
              a = inp_r[(b*BIN+k)*8+:8];
              pair = {{wgt_r[((o+1)*BIN+k)*8+7]}, wgt_r[((o+1)*BIN+k)*8+:8], 16'd0} +
                     {{17{wgt_r[(o*BIN+k)*8+7]}}, wgt_r[(o*BIN+k)*8+:8]};
              product = pair * a;
              low[k*16+:16] <= product[15:0];
              high[k*16+:16] <= product[31:16] + {15'd0, product[15]};
            end
          end
        end
        for (p = 0; p < PARTS; p = p + 1) begin : g_part
          always_ff @(posedge clk) begin
            integer k;
            logic [PW-1:0] l, h;
            l = '0;
            h = '0;
            for (k = p * PER_PART; k < (p + 1) * PER_PART; k = k + 1) begin
              l = l + {{(PW - 16) {low[k*16+15]}}, low[k*16+:16]};
              h = h + {{(PW - 16) {high[k*16+15]}}, high[k*16+:16]};
            end
            if (en && v4) begin
              low_part[p*PW+:PW] <= l;
              high_part[p*PW+:PW] <= h;
            end
          end
        end
        always_ff @(posedge clk) begin
          integer k;
          logic [TW-1:0] l, h;
          l = '0;
          h = '0;
          for (k = 0; k < PARTS; k = k + 1) begin
            l = l + {{(TW - PW) {low_part[k*PW+PW-1]}}, low_part[k*PW+:PW]};
            h = h + {{(TW - PW) {high_part[k*PW+PW-1]}}, high_part[k*PW+:PW]};
          end
          if (en && v5) begin
            low_sum <= l;
            high_sum <= h;
          end
        end
        assign sums[(b*BOUT+o)*TW+:TW] = low_sum;
        assign sums[(b*BOUT+o+1)*TW+:TW] = high_sum;
      end
    end
  endgenerate

  logic [BATCH*BOUT*TW-1:0] sums7;
  logic [vta_pkg::ACC_BITS-1:0] acc7;
  logic hits6;  // the step in front writes what this one has read
  always_ff @(posedge clk) begin
    if (rst) begin
      {v1, v2, v3, v4, v5, v6, v7} <= '0;
      ends <= '0;
      {own1, own2, own3, own4, own5, own6, owned} <= '0;
    end else if (en) begin
      v1 <= busy && !null_step;
      {v2, v3, v4, v5, v6, v7} <= {v1, v2, v3, v4, v5, v6};
      ends <= {ends[6:1], busy && last};
      own1 <= own0;
      {own2, own3, own4, own5, own6} <= {own1, own2, own3, own4, own5};
      owned <= own0 | own1 | own2 | own3 | own4 | own5 | own6 |
               (start ? task_word[vta_pkg::GEMM_BANKS_AT+:4] : '0);
    end
    if (en) begin
      base_dst <= dst;
      base_src <= src;
      base_aux <= aux;
      first1 <= init && (at_zero & over) == over;
      push1 <= pushes;
      {first2, first3, first4, first5, first6} <= {first1, first2, first3, first4, first5};
      {push2, push3, push4, push5, push6, push7} <= {push1, push2, push3, push4, push5, push6};
      dst2 <= dst_1[AAW-1:0];
      outside2 <= dst_1 >= SW'(vta_pkg::ACC_DEPTH) || src_1 >= SW'(vta_pkg::INP_DEPTH) ||
                  aux_1 >= SW'(vta_pkg::WGT_DEPTH) || !own1[bank_1];
      {dst3, dst4, dst5, dst6, dst7} <= {dst2, dst3, dst4, dst5, dst6};
      if (v2) begin
        inp_r <= inp_q;
        wgt_r <= wgt_q;
      end
      hits6 <= v6 && dst6 == dst5;
      if (v6) begin
        sums7 <= sums;
        acc7 <= first6 ? '0 : hits6 ? acc_wdata : acc_rdata;
      end
    end
  end

  assign done = ends[7] && en;
  assign done_push = push7;
  assign acc_re = v5 && en;
  assign acc_raddr = dst5;
  assign acc_we = v7 && en;
  assign acc_writes = v7;
  assign acc_waddr = dst7;
  genvar lane;
  generate
    for (lane = 0; lane < BATCH * BOUT; lane = lane + 1) begin : g_add
      assign acc_wdata[lane*32+:32] =
          acc7[lane*32+:32] + {{(32 - TW) {sums7[lane*TW+TW-1]}}, sums7[lane*TW+:TW]};
    end
  endgenerate

  logic unused;
  assign unused = &{1'b0, uop[vta_pkg::UOP_AW], code};
endmodule
