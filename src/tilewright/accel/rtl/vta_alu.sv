// The vector unit: acc[dst] = fn(acc[src], acc[aux]), and requantization into `out` or back.
//
// Stages: 0 loops, microcode is read; 1 addresses, operands are read, a cycle for every operand in
// the same bank; 2 the function, written at once; requantization goes on: 3 bias, 4 product, 5 half,
// 6 shift, 7 zero point and limits, written. What is written back into `acc` (`rescale`) is written
// late: the next task waits for it.
//
// A lane has four multipliers. `mac` multiplies bytes of its operands in stage 2, requantization
// halves of 32-bit numbers in stage 4: the gap between tasks keeps these apart.
module vta_alu (
    input  logic        clk,
    input  logic        rst,
    input  logic        en,
    input  logic        start,
    input  logic [vta_pkg::ALU_BITS-1:0] task_word,
    output logic        ready,
    output logic [3:0]  owned,
    output logic        done,
    output logic [4:0]  done_push,
    output logic        trap,
    input  logic        uop_we,
    input  logic [vta_pkg::UOP_AW-1:0] uop_waddr,
    input  logic [63:0] uop_wdata,
    // accumulators: a read a bank, one write
    output logic [3:0]  acc_re,
    output logic [4*vta_pkg::BANK_AW-1:0] acc_raddr,
    input  logic [4*vta_pkg::ACC_BITS-1:0] acc_rdata,
    output logic        acc_we,
    output logic [vta_pkg::ACC_AW-1:0] acc_waddr,
    output logic [vta_pkg::ACC_BITS-1:0] acc_wdata,
    output logic        out_we,
    output logic [vta_pkg::ACC_AW-1:0] out_waddr,
    output logic [vta_pkg::OUT_BITS-1:0] out_wdata
);
  localparam int SW = vta_pkg::STEP_BITS;
  localparam int LANES = vta_pkg::BATCH * vta_pkg::BLOCK_OUT;
  localparam int AB = vta_pkg::ACC_BITS;
  localparam int AAW = vta_pkg::ACC_AW;
  localparam int BAW = vta_pkg::BANK_AW;

  logic busy, last, null_step, next;
  logic [vta_pkg::UOP_BITS-1:0] uop;
  logic [SW-1:0] dst, src, aux;
  logic [4:0] at_zero;
  logic valid1, null1, last1, finish1;
  assign next = busy && en && (!valid1 || finish1);
  vta_steps #(
      .SW(SW)
  ) steps (
      .clk(clk), .rst(rst), .start(start && en), .next(next),
      .fields(task_word[vta_pkg::ALU_UBEGIN_AT+:vta_pkg::STEPS_BITS]), .busy(busy), .last(last),
      .null_step(null_step), .uop(uop), .dst(dst), .src(src), .aux(aux), .at_zero(at_zero)
  );
  logic [7:2] late;  // steps of a rescale on their way
  assign ready = !busy && !valid1 && late == '0;

  logic [2:0] fn;
  logic imm;
  logic [31:0] value;
  logic [7:0] zero, low, high;
  logic [4:0] pushes;
  logic [3:0] banks;
  always_ff @(posedge clk) begin
    if (start && en) begin
      fn <= task_word[vta_pkg::ALU_FN_AT+:3];
      imm <= task_word[vta_pkg::ALU_IMM_AT];
      value <= task_word[vta_pkg::ALU_VALUE_AT+:32];
      zero <= task_word[vta_pkg::ALU_ZERO_AT+:8];
      low <= task_word[vta_pkg::ALU_LOW_AT+:8];
      high <= task_word[vta_pkg::ALU_HIGH_AT+:8];
      pushes <= task_word[vta_pkg::ALU_PUSH_AT+:5];
      banks <= task_word[vta_pkg::ALU_BANKS_AT+:4];
    end
  end
  logic requant, rescale, with_aux, with_dst;
  assign rescale = fn == 3'(vta_pkg::ALU_RESCALE);
  assign requant = fn == 3'(vta_pkg::ALU_REQUANT) || rescale;
  assign with_aux = !imm && !requant;
  assign with_dst = fn == 3'(vta_pkg::ALU_MAC);

  // ---- stage 1
  logic [63:0] code;
  vta_ram #(
      .DEPTH(vta_pkg::UOP_DEPTH), .LANES(1), .LANE_BITS(64), .AW(vta_pkg::UOP_AW)
  ) microcode (
      .clk(clk), .we(uop_we), .waddr(uop_waddr), .wdata(uop_wdata), .re(next),
      .raddr(uop[vta_pkg::UOP_AW-1:0]), .rdata(code)
  );
  logic [SW-1:0] base_dst, base_src, base_aux, dst1, src1, aux1, last_aux, aux_most;
  assign dst1 = base_dst + SW'(code[vta_pkg::UOP_DST_AT+:vta_pkg::UOP_DST_BITS]);
  assign src1 = base_src + SW'(code[vta_pkg::UOP_SRC_AT+:vta_pkg::UOP_SRC_BITS]);
  assign aux1 = base_aux + SW'(code[vta_pkg::UOP_AUX_AT+:vta_pkg::UOP_AUX_BITS]);
  assign aux_most = aux1 + (requant ? SW'(2) : '0);

  logic [1:0] phase;  // of reading parameters; 3: they are there
  logic has_params;
  logic needs_params;
  assign needs_params = requant && (!has_params || last_aux != aux1) && phase != 2'd3;
  logic read_src, read_aux, read_dst, had_src, had_aux, had_dst;
  logic [AAW-1:0] at_src, at_aux, at_dst;
  logic [1:0] bank_src, bank_aux, bank_dst;
  assign at_src = src1[AAW-1:0];
  assign at_aux = aux1[AAW-1:0] + (requant ? AAW'(phase) : '0);
  assign at_dst = dst1[AAW-1:0];
  assign bank_src = at_src[AAW-1:AAW-2];
  assign bank_aux = at_aux[AAW-1:AAW-2];
  assign bank_dst = at_dst[AAW-1:AAW-2];
  logic works;  // a step that is no null step
  assign works = valid1 && !null1;
  assign read_src = works && !needs_params && !had_src;
  assign read_aux = works && (needs_params ||
                    (with_aux && !had_aux && !(read_src && bank_aux == bank_src)));
  assign read_dst = works && with_dst && !had_dst && !(read_src && bank_dst == bank_src) &&
                    !(read_aux && bank_dst == bank_aux);
  assign finish1 = valid1 && (null1 || (!needs_params && (had_src || read_src) &&
                   (!with_aux || had_aux || read_aux) && (!with_dst || had_dst || read_dst)));
  logic in_range;
  assign in_range = src1 < SW'(vta_pkg::ACC_DEPTH) && dst1 < SW'(vta_pkg::ACC_DEPTH) &&
      (!(with_aux || requant) || aux_most < SW'(vta_pkg::ACC_DEPTH));
  assign trap = works && (!in_range || (read_src && !banks[bank_src]) ||
                (read_aux && !banks[bank_aux]) || ((!requant || rescale) && !banks[bank_dst]));

  genvar bank;
  generate
    for (bank = 0; bank < 4; bank = bank + 1) begin : g_bank
      logic by_src, by_aux, by_dst;
      assign by_src = read_src && bank_src == 2'(bank);
      assign by_aux = read_aux && bank_aux == 2'(bank);
      assign by_dst = read_dst && bank_dst == 2'(bank);
      assign acc_re[bank] = en && (by_src || by_aux || by_dst);
      assign acc_raddr[bank*BAW+:BAW] = by_src ? at_src[BAW-1:0] :
                                        by_aux ? at_aux[BAW-1:0] : at_dst[BAW-1:0];
    end
  endgenerate

  // ---- stage 2
  logic exec2, is_requant2, imm2;
  logic [2:0] fn2;
  logic [1:0] param2;
  logic loads_param2, fresh_src, fresh_aux, fresh_dst;
  logic [1:0] bank_src2, bank_aux2, bank_dst2;
  logic [AAW-1:0] dst2;
  logic [AB-1:0] held_src, held_aux, held_dst, value_src, value_aux, value_dst;
  assign value_src = fresh_src ? acc_rdata[bank_src2*AB+:AB] : held_src;
  assign value_aux = fresh_aux ? acc_rdata[bank_aux2*AB+:AB] : held_aux;
  assign value_dst = fresh_dst ? acc_rdata[bank_dst2*AB+:AB] : held_dst;
  logic [31:0] value2;

  // ---- stages 3 to 7, of requantization
  logic exec3, exec4, exec5, exec6, exec7;
  logic [AAW-1:0] dst3, dst4, dst5, dst6, dst7;
  logic [7:2] ends;
  logic [4:0] push2, push3, push4, push5, push6, push7;
  logic [3:0] own2, own3, own4, own5, own6, own7;
  logic [23:0] limits2, limits3, limits4, limits5, limits6, limits7;  // zero, low, high
  assign acc_we = en && ((exec2 && !is_requant2) || (exec7 && late[7]));
  assign acc_waddr = late[7] ? dst7 : dst2;
  assign out_we = exec7 && !late[7] && en;
  assign out_waddr = dst7;
  assign owned = (busy || valid1 ? banks : '0) | own2 | own3 | own4 | own5 | own6 | own7;
  assign done = ends[7] && en;
  assign done_push = push7;

  always_ff @(posedge clk) begin
    if (rst) begin
      valid1 <= 1'b0;
      {exec2, exec3, exec4, exec5, exec6, exec7} <= '0;
      ends <= '0;
      late <= '0;
      loads_param2 <= 1'b0;
      {own2, own3, own4, own5, own6, own7} <= '0;
    end else if (en) begin
      if (next) valid1 <= 1'b1;
      else if (finish1) valid1 <= 1'b0;
      exec2 <= finish1 && !null1;
      loads_param2 <= works && needs_params;
      exec3 <= exec2 && is_requant2;
      {exec4, exec5, exec6, exec7} <= {exec3, exec4, exec5, exec6};
      ends <= {ends[6:2], finish1 && last1};
      late <= {late[6:2], valid1 && rescale};
      own2 <= valid1 ? banks : '0;
      {own3, own4, own5, own6, own7} <= {own2, own3, own4, own5, own6};
    end
    if (en) begin
      if (next) begin
        base_dst <= dst;
        base_src <= src;
        base_aux <= aux;
        null1 <= null_step;
        last1 <= last;
      end
      if (start) has_params <= 1'b0;
      if (next || start) phase <= 2'd0;
      else if (works && needs_params) phase <= phase + 1'b1;
      if (works && needs_params && phase == 2'd2) begin
        has_params <= 1'b1;
        last_aux <= aux1;
      end
      had_src <= !finish1 && (had_src || read_src) && valid1;
      had_aux <= !finish1 && !requant && (had_aux || read_aux) && valid1;
      had_dst <= !finish1 && (had_dst || read_dst) && valid1;
      fresh_src <= read_src;
      fresh_aux <= read_aux;
      fresh_dst <= read_dst;
      bank_src2 <= bank_src;
      bank_aux2 <= bank_aux;
      bank_dst2 <= bank_dst;
      param2 <= phase;
      is_requant2 <= requant;
      imm2 <= imm;
      fn2 <= fn;
      value2 <= value;
      limits2 <= {zero, low, high};
      dst2 <= at_dst;
      push2 <= pushes;
      {dst3, dst4, dst5, dst6, dst7} <= {dst2, dst3, dst4, dst5, dst6};
      {push3, push4, push5, push6, push7} <= {push2, push3, push4, push5, push6};
      {limits3, limits4, limits5, limits6, limits7} <=
          {limits2, limits3, limits4, limits5, limits6};
      if (fresh_src) held_src <= value_src;
      if (fresh_aux) held_aux <= value_aux;
      if (fresh_dst) held_dst <= value_dst;
    end
  end

  genvar lane;
  generate
    for (lane = 0; lane < LANES; lane = lane + 1) begin : g_lane
      logic signed [31:0] a, b, old, made;
      logic signed [17:0] product;
      logic [4:0] right, left;
      assign a = value_src[lane*32+:32];
      assign b = imm2 ? value2 : value_aux[lane*32+:32];
      assign old = value_dst[lane*32+:32];
      assign right = b[31:5] == '0 ? b[4:0] : 5'd31;
      assign left = b[31:5] == '1 && b[4:0] != '0 ? -b[4:0] : 5'd31;
      always_comb begin
        case (fn2)
          3'(vta_pkg::ALU_ADD): made = a + b;
          3'(vta_pkg::ALU_MAX): made = a > b ? a : b;
          3'(vta_pkg::ALU_MIN): made = a < b ? a : b;
          3'(vta_pkg::ALU_MAC): made = old + 32'(product);
          3'(vta_pkg::ALU_MUL): made = 32'(product);
          default: made = b[31] ? a << left : a >>> right;
        endcase
      end

      // products
      logic signed [31:0] bias, multiplier, src3, total4;
      logic [4*34-1:0] products;
      genvar t;
      for (t = 0; t < 4; t = t + 1) begin : g_product
        logic signed [16:0] x, y;
        always_comb begin
          x = t < vta_pkg::TAPS ? 17'($signed(a[t*8+:8])) : '0;
          y = 17'($signed(b[t*8+:8]));
          if (exec4) begin
            x = t < 2 ? {1'b0, total4[15:0]} : 17'($signed(total4[31:16]));
            y = t % 2 == 0 ? {1'b0, multiplier[15:0]} : 17'($signed(multiplier[31:16]));
          end
        end
        assign products[t*34+:34] = x * y;
      end
      logic signed [33:0] p_ll, p_lh, p_hl, p_hh;  // of low and high halves
      assign {p_hh, p_hl, p_lh, p_ll} = products;
      assign product = 18'(p_ll) + 18'(p_lh) + 18'(p_hl) + 18'(p_hh);

      // requantization
      logic [5:0] shift, shift5, shift6;
      logic signed [63:0] product5, rounded6, scaled7;
      logic signed [63:0] moved;
      logic signed [7:0] zero7, low7, high7;
      assign {zero7, low7, high7} = limits7;
      always_ff @(posedge clk) begin
        if (en) begin
          if (loads_param2) begin
            if (param2 == 2'd0) bias <= value_aux[lane*32+:32];
            if (param2 == 2'd1) multiplier <= value_aux[lane*32+:32];
            if (param2 == 2'd2) shift <= value_aux[lane*32+:6];
          end
          if (exec2) src3 <= a;
          if (exec3) total4 <= src3 + bias;
          if (exec4) begin
            product5 <= (64'(p_hh) <<< 32) + ((64'(p_lh) + 64'(p_hl)) <<< 16) + 64'(p_ll);
            shift5 <= shift;
          end
          if (exec5) begin
            rounded6 <= product5 + (shift5 == '0 ? 64'sd0 : 64'sd1 <<< (shift5 - 1'b1));
            shift6 <= shift5;
          end
          if (exec6) scaled7 <= rounded6 >>> shift6;
        end
      end
      assign moved = scaled7 + 64'(zero7);
      logic signed [7:0] limited;
      always_comb begin
        limited = moved[7:0];
        if (moved < 64'(low7)) limited = low7;
        if ((moved < 64'(low7) ? 64'(low7) : moved) > 64'(high7)) limited = high7;
      end
      assign out_wdata[lane*8+:8] = limited;
      assign acc_wdata[lane*32+:32] = late[7] ? 32'(limited) : made;
    end
  endgenerate

  logic unused;
  assign unused = &{1'b0, uop[vta_pkg::UOP_AW], at_zero, code};
endmodule
