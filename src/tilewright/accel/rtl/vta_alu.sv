// The vector unit: acc[dst] = fn(acc[src], acc[aux]), and requantization into `out` or back.
//
// Stages: 0 loops, microcode is read; 1 addresses; 2 operands are read, a cycle for every operand in
// the same bank; 3 they come, requantization adds the bias; 4 products, and the function, written
// at once; requantization goes on: 5 sum of the products, 6 shift, 7 rounding, zero point and limits,
// written. What is written back into `acc` (`rescale`) is written late: the next task waits
// for it. What a step writes while another reads it, or in the cycle after that, is forwarded.
//
// A lane has four multipliers, for bytes of the operands of `mac`, or for halves of the 32-bit
// numbers of requantization.
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
  localparam int TAPS = vta_pkg::TAPS;

  logic busy, last, null_step, no_range, next, advance;
  logic [vta_pkg::UOP_BITS-1:0] uop;
  logic [SW-1:0] dst, src, aux;
  logic [4:0] at_zero;
  logic valid1, null1, last1, valid2, null2, last2, finish2;
  assign advance = valid1 && (!valid2 || finish2);
  assign next = busy && en && (!valid1 || !valid2 || finish2);
  vta_steps #(
      .SW(SW)
  ) steps (
      .clk(clk), .rst(rst), .start(start), .next(next),
      .fields(task_word[vta_pkg::ALU_UBEGIN_AT+:vta_pkg::STEPS_BITS]), .busy(busy), .last(last),
      .null_step(null_step), .no_range(no_range), .uop(uop), .dst(dst), .src(src), .aux(aux), .at_zero(at_zero)
  );

  logic [2:0] fn;
  logic imm;
  logic [31:0] value;
  logic [7:0] zero, low, high;
  logic [4:0] pushes;
  logic [3:0] banks;
  // A task's registers follow the head of the queue until one begins: nothing waits for `start`.
  logic [2:0] t_fn;
  logic t_rescale, t_requant;
  logic signed [7:0] t_low, t_high;
  assign t_fn = task_word[vta_pkg::ALU_FN_AT+:3];
  assign t_rescale = t_fn == 3'(vta_pkg::ALU_RESCALE);
  assign t_requant = t_fn == 3'(vta_pkg::ALU_REQUANT) || t_rescale;
  assign t_low = task_word[vta_pkg::ALU_LOW_AT+:8];
  assign t_high = task_word[vta_pkg::ALU_HIGH_AT+:8];
  logic requant, rescale, with_aux, with_dst;
  always_ff @(posedge clk) begin
    if (!busy && !valid1 && (!valid2 || (finish2 && en))) begin
      fn <= t_fn;
      rescale <= t_rescale;
      requant <= t_requant;
      with_aux <= !task_word[vta_pkg::ALU_IMM_AT] && !t_requant;
      with_dst <= t_fn == 3'(vta_pkg::ALU_MAC);
      imm <= task_word[vta_pkg::ALU_IMM_AT];
      value <= task_word[vta_pkg::ALU_VALUE_AT+:32];
      zero <= task_word[vta_pkg::ALU_ZERO_AT+:8];
      low <= t_low < t_high ? t_low : t_high;  // the upper limit comes last
      high <= t_high;
      pushes <= task_word[vta_pkg::ALU_PUSH_AT+:5];
      banks <= task_word[vta_pkg::ALU_BANKS_AT+:4];
    end
  end
  logic [7:3] late;  // steps of a rescale on their way
  logic is_late;  // there are some
  assign ready = !busy && !valid1 && (!valid2 || (finish2 && !rescale)) && !is_late;

  // ---- stage 1
  logic [63:0] code;
  vta_ram #(
      .DEPTH(vta_pkg::UOP_DEPTH), .LANES(1), .LANE_BITS(64), .AW(vta_pkg::UOP_AW)
  ) microcode (
      .clk(clk), .we(uop_we), .waddr(uop_waddr), .wdata(uop_wdata), .re(next),
      .raddr(uop[vta_pkg::UOP_AW-1:0]), .rdata(code)
  );
  logic [SW-1:0] base_dst, base_src, base_aux, dst1, src1, aux1;
  logic [vta_pkg::UOP_AUX_BITS-1:0] code_aux;
  assign dst1 = base_dst + SW'(code[vta_pkg::UOP_DST_AT+:vta_pkg::UOP_DST_BITS]);
  assign src1 = base_src + SW'(code[vta_pkg::UOP_SRC_AT+:vta_pkg::UOP_SRC_BITS]);
  assign code_aux = code[vta_pkg::UOP_AUX_AT+:vta_pkg::UOP_AUX_BITS];
  assign aux1 = base_aux + SW'(code_aux);

  // ---- stage 2
  logic [AAW-1:0] at_src, at_aux, at_dst, read_aux_at;
  logic is_outside, is_first;
  logic [1:0] phase;  // of reading parameters
  logic needs_params;  // there are others than the step before has, which are not there yet
  logic [1:0] reads, reads1;  // cycles of reading operands behind the first
  logic final2;  // the last cycle of reading operands, or a null step
  // a + b is c if and only if c has the carries of that sum.
  function automatic logic is_sum(input logic [AAW-1:0] a, input logic [AAW-1:0] b,
                                  input logic [AAW-1:0] c);
    is_sum = (a ^ b ^ c) == AAW'({(a & b) | ((a | b) & ~c), 1'b0});
  endfunction
  logic same_aux1;
  assign same_aux1 = is_sum(base_aux[AAW-1:0], AAW'(code_aux), at_aux);
  assign read_aux_at = at_aux + (requant ? AAW'(phase) : '0);
  logic read_src, read_aux, read_dst, had_src, had_aux, had_dst;
  logic [1:0] bank_src, bank_aux, bank_dst;
  assign bank_src = at_src[AAW-1:AAW-2];
  assign bank_aux = read_aux_at[AAW-1:AAW-2];
  assign bank_dst = at_dst[AAW-1:AAW-2];
  // Operands in one bank, never parameters: of this step, and of the one in front of it.
  logic src_meets_aux, src_meets_dst, aux_meets_dst, src_meets_aux1, src_meets_dst1, aux_meets_dst1;
  assign src_meets_aux1 = src1[AAW-1:AAW-2] == aux1[AAW-1:AAW-2];
  assign src_meets_dst1 = src1[AAW-1:AAW-2] == dst1[AAW-1:AAW-2];
  assign aux_meets_dst1 = aux1[AAW-1:AAW-2] == dst1[AAW-1:AAW-2];
  assign reads1 = !with_dst ? {1'b0, with_aux && src_meets_aux1} :
                  !with_aux ? {1'b0, src_meets_dst1} :
                  src_meets_aux1 && src_meets_dst1 ? 2'd2 :
                  {1'b0, src_meets_aux1 || src_meets_dst1 || aux_meets_dst1};
  logic works;  // a step that is no null step
  assign works = valid2 && !null2;
  assign read_src = works && !needs_params && !had_src;
  assign read_aux = works && (needs_params ||
                    (with_aux && !had_aux && !(!had_src && src_meets_aux)));
  assign read_dst = works && with_dst && !had_dst && !(!had_src && src_meets_dst) &&
                    !(read_aux && aux_meets_dst);
  assign finish2 = valid2 && final2 && !needs_params;
  assign trap = (busy && no_range) || (works && (is_outside || (requant && at_aux[AAW-1:1] == '1) ||
                (read_src && !banks[bank_src]) || (read_aux && !banks[bank_aux]) ||
                ((!requant || rescale) && !banks[bank_dst])));

  genvar bank;
  generate
    for (bank = 0; bank < 4; bank = bank + 1) begin : g_bank
      logic by_src, by_aux, by_dst;
      assign by_src = read_src && bank_src == 2'(bank);
      assign by_aux = read_aux && bank_aux == 2'(bank);
      assign by_dst = read_dst && bank_dst == 2'(bank);
      assign acc_re[bank] = en && (by_src || by_aux || by_dst);
      assign acc_raddr[bank*BAW+:BAW] = by_src ? at_src[BAW-1:0] :
                                        by_aux ? read_aux_at[BAW-1:0] : at_dst[BAW-1:0];
    end
  endgenerate

  // ---- stage 3: operands come, or from the step in front, which writes them now
  logic exec3, is_requant3, imm3, writes3;
  logic [2:0] fn3;
  logic add4, limit4, min4, shift4, mac4, product4;  // by function, none while a rescale is written
  logic [1:0] param3;
  logic loads_param3, fresh_src, fresh_aux, fresh_dst, hits_src, hits_aux, hits_dst;
  logic [1:0] bank_src3, bank_aux3, bank_dst3;
  logic [31:0] value3;
  logic [AB-1:0] value_src, value_aux, value_dst;
  assign value_src = acc_rdata[bank_src3*AB+:AB];
  assign value_aux = acc_rdata[bank_aux3*AB+:AB];
  assign value_dst = acc_rdata[bank_dst3*AB+:AB];
  assign writes3 = exec3 && !is_requant3;

  // ---- stages 4 to 7
  logic exec4, exec5, exec6, exec7, is_requant4;
  logic [AAW-1:0] dst3, dst4, dst5, dst6, dst7;
  logic [7:3] ends;
  logic [4:0] push3, push4, push5, push6, push7;
  logic [3:0] own2, own3, own4, own5, own6;
  assign own2 = valid2 ? banks : '0;
  logic [23:0] limits3, limits4, limits5, limits6, limits7;  // zero, low, high
  assign acc_we = en && ((exec4 && !is_requant4) || (exec7 && late[7]));
  assign acc_waddr = late[7] ? dst7 : dst4;
  assign out_we = exec7 && !late[7] && en;
  assign out_waddr = dst7;
  assign done = ends[7] && en;
  assign done_push = push7;

  always_ff @(posedge clk) begin
    if (rst) begin
      {valid1, valid2} <= '0;
      {exec3, exec4, exec5, exec6, exec7} <= '0;
      ends <= '0;
      late <= '0;
      is_late <= 1'b0;
      loads_param3 <= 1'b0;
      {own3, own4, own5, own6, owned} <= '0;
    end else if (en) begin
      if (next) valid1 <= 1'b1;
      else if (advance) valid1 <= 1'b0;
      if (advance) valid2 <= 1'b1;
      else if (finish2) valid2 <= 1'b0;
      exec3 <= finish2 && !null2;
      loads_param3 <= works && needs_params;
      exec4 <= exec3;
      exec5 <= exec4 && is_requant4;
      {exec6, exec7} <= {exec5, exec6};
      ends <= {ends[6:3], finish2 && last2};
      late <= {late[6:3], valid2 && rescale};
      is_late <= late[6:3] != '0 || (valid2 && rescale);
      own3 <= own2;
      {own4, own5, own6} <= {own3, own4, own5};
      owned <= own2 | own3 | own4 | own5 | own6 | (busy || valid1 ? banks : '0) |
               (start ? task_word[vta_pkg::ALU_BANKS_AT+:4] : '0);
    end
    if (en) begin
      if (next) begin
        base_dst <= dst;
        base_src <= src;
        base_aux <= aux;
        null1 <= null_step;
        last1 <= last;
      end
      if (start) is_first <= 1'b1;
      else if (advance) is_first <= 1'b0;
      if (advance) begin
        at_src <= src1[AAW-1:0];
        at_aux <= aux1[AAW-1:0];
        at_dst <= dst1[AAW-1:0];
        is_outside <= src1 >= SW'(vta_pkg::ACC_DEPTH) || dst1 >= SW'(vta_pkg::ACC_DEPTH) ||
                      ((with_aux || requant) && aux1 >= SW'(vta_pkg::ACC_DEPTH));
        needs_params <= requant && !null1 && (is_first || !same_aux1);
        reads <= reads1;
        final2 <= null1 || reads1 == '0;
        src_meets_aux <= src_meets_aux1;
        src_meets_dst <= src_meets_dst1;
        aux_meets_dst <= aux_meets_dst1;
        null2 <= null1;
        last2 <= last1;
        phase <= 2'd0;
      end else if (works && needs_params) begin
        phase <= phase + 1'b1;
        needs_params <= phase != 2'd2;
      end else if (works && reads != '0) begin
        reads <= reads - 1'b1;
        final2 <= reads == 2'd1;
      end
      had_src <= !finish2 && (had_src || read_src) && valid2;
      had_aux <= !finish2 && !requant && (had_aux || read_aux) && valid2;
      had_dst <= !finish2 && (had_dst || read_dst) && valid2;
      fresh_src <= read_src;
      fresh_aux <= read_aux;
      fresh_dst <= read_dst;
      hits_src <= writes3 && dst3 == at_src;
      hits_aux <= writes3 && dst3 == at_aux;
      hits_dst <= writes3 && dst3 == at_dst;
      bank_src3 <= bank_src;
      bank_aux3 <= bank_aux;
      bank_dst3 <= bank_dst;
      param3 <= phase;
      is_requant3 <= requant;
      imm3 <= imm;
      fn3 <= fn;
      value3 <= value;
      limits3 <= {zero, low, high};
      dst3 <= at_dst;
      push3 <= pushes;
      is_requant4 <= is_requant3;
      add4 <= fn3 == 3'(vta_pkg::ALU_ADD) && !late[6];
      limit4 <= (fn3 == 3'(vta_pkg::ALU_MAX) || fn3 == 3'(vta_pkg::ALU_MIN)) && !late[6];
      min4 <= fn3 == 3'(vta_pkg::ALU_MIN);
      shift4 <= fn3 == 3'(vta_pkg::ALU_SHIFT) && !late[6];
      mac4 <= fn3 == 3'(vta_pkg::ALU_MAC);
      product4 <= (fn3 == 3'(vta_pkg::ALU_MAC) || fn3 == 3'(vta_pkg::ALU_MUL)) && !late[6];
      {dst4, dst5, dst6, dst7} <= {dst3, dst4, dst5, dst6};
      {push4, push5, push6, push7} <= {push3, push4, push5, push6};
      {limits4, limits5, limits6, limits7} <= {limits3, limits4, limits5, limits6};
    end
  end

  genvar lane;
  generate
    for (lane = 0; lane < LANES; lane = lane + 1) begin : g_lane
      logic signed [31:0] a, b, old;  // stage 4
      logic signed [31:0] bias, multiplier, total3;
      logic signed [17:0] product;
      assign total3 = value_src[lane*32+:32] + bias;
      // Shifts to the left are shifts to the right of the bits in the other order, by 31 at most:
      // by one, and by the complement.
      logic [31:0] turned, turned_back, shifted, far;
      logic [4:0] amount;
      logic is_far;
      genvar i;
      for (i = 0; i < 32; i = i + 1) begin : g_bit
        assign turned[i] = !b[31] ? a[i] : i < 31 ? a[30-i] : 1'b0;
        assign turned_back[i] = shifted[31-i];
      end
      assign amount = b[4:0] ^ {5{b[31]}};
      assign shifted = 32'($signed({!b[31] && a[31], turned}) >>> amount);
      assign is_far = b[31] ? b[31:5] != '1 || b[4:0] == '0 : b[31:5] != '0;
      assign far = b[31] ? {a[0], 31'd0} : {32{a[31]}};
      // What a step makes goes to memory, and to the next step, which has the same function: sums
      // with products only to products, all else only to all else.
      logic signed [31:0] other, sum;
      logic signed [7:0] limited;
      assign other = ({32{add4}} & (a + b)) | ({32{limit4}} & ((a > b) ^ min4 ? a : b)) |
                     ({32{shift4 && is_far}} & far) |
                     ({32{shift4 && !is_far && b[31]}} & turned_back) |
                     ({32{shift4 && !is_far && !b[31]}} & shifted);
      assign sum = (mac4 ? old : '0) + 32'(product);
      assign acc_wdata[lane*32+:32] = other | ({32{product4}} & sum) |
                                      ({32{late[7]}} & 32'(limited));

      // products, of low and high halves in requantization
      logic [4*34-1:0] products;
      logic [31:0] p_ll, p_hh;
      logic signed [33:0] p_lh, p_hl;
      genvar t;
      for (t = 0; t < 4; t = t + 1) begin : g_product
        logic signed [16:0] x, y;
        logic signed [16:0] half_x, half_y;
        assign half_x = t < 2 ? {1'b0, total3[15:0]} : 17'($signed(total3[31:16]));
        assign half_y = t % 2 == 0 ? {1'b0, multiplier[15:0]} : 17'($signed(multiplier[31:16]));
        always_ff @(posedge clk) begin
          if (en && fresh_src)
            x <= t >= TAPS || is_requant3 ? half_x :
                 17'($signed(hits_src ? sum[t*8+:8] : value_src[lane*32+t*8+:8]));
          if (en && (fresh_aux || (fresh_src && (imm3 || is_requant3))))
            y <= t < TAPS && !is_requant3 && !imm3 ?
                 17'($signed(hits_aux ? sum[t*8+:8] : value_aux[lane*32+t*8+:8])) :
                 t < TAPS && !is_requant3 ? 17'($signed(value3[t*8+:8])) : half_y;
        end
        assign products[t*34+:34] = x * y;
      end
      always_comb begin
        integer tap;
        product = '0;
        for (tap = 0; tap < TAPS; tap = tap + 1) product = product + products[tap*34+:18];
      end

      // Requantization. Rounding adds the bit behind the last one that is left. Of a shifted product
      // ten bits and that one are wanted, and whether those above are all like the sign: they are
      // not shifted. The largest product, 2**62, with the half of 2**63, is beyond 64 bits: -2**63.
      logic [5:0] shift, by4, by5, by6;
      logic signed [63:0] outer5, product6;
      logic signed [34:0] inner5;
      logic signed [9:0] scaled7;  // at the ends of its range, where it is beyond them
      assign outer5 = {p_hh, p_ll};
      assign inner5 = 35'(p_lh) + 35'(p_hl);
      logic wraps6, sign6, is_wide6;
      assign sign6 = product6[63];
      logic [53:0] above6;
      logic [41:0] by_32;
      logic [25:0] by_16;
      logic [17:0] by_8;
      logic [13:0] by_4;
      logic [11:0] by_2, by_2_7;
      logic odd7, is_wide7, sign7;
      logic [10:0] by_1;
      assign wraps6 = by6 == '1 && product6[63:62] == 2'b01;
      assign is_wide6 = ((product6[62:9] ^ {54{sign6}}) & above6) != '0;
      assign by_32 = by6[5] ? {{10{sign6}}, product6[62:31]}
                               : {product6[40:0], 1'b0};
      assign by_16 = by6[4] ? by_32[41:16] : by_32[25:0];
      assign by_8 = by6[3] ? by_16[25:8] : by_16[17:0];
      assign by_4 = by6[2] ? by_8[17:4] : by_8[13:0];
      assign by_2 = by6[1] ? by_4[13:2] : by_4[11:0];
      assign by_1 = odd7 ? by_2_7[11:1] : by_2_7[10:0];
      assign scaled7 = is_wide7 ? {sign7, {9{!sign7}}} : by_1[10:1];
      always_ff @(posedge clk) begin
        if (en) begin
          if (loads_param3) begin
            if (param3 == 2'd0) bias <= value_aux[lane*32+:32];
            if (param3 == 2'd1) multiplier <= value_aux[lane*32+:32];
            if (param3 == 2'd2) shift <= value_aux[lane*32+:6];
          end
          if (fresh_src) a <= hits_src ? other : value_src[lane*32+:32];
          if (fresh_aux || (fresh_src && imm3))
            b <= imm3 ? value3 : hits_aux ? other : value_aux[lane*32+:32];
          if (fresh_dst) old <= hits_dst ? sum : value_dst[lane*32+:32];
          if (exec3) by4 <= shift;
          if (exec4) begin
            {p_hl, p_lh} <= products[34+:68];
            {p_hh, p_ll} <= {products[102+:32], products[0+:32]};
            by5 <= by4;
          end
          if (exec5) begin
            product6 <= outer5 + (64'(inner5) <<< 16);
            by6 <= by5;
            above6 <= ~54'd0 << by5;
          end
          if (exec6) begin
            by_2_7 <= wraps6 ? 12'hffc : by_2;
            {odd7, is_wide7, sign7} <= {by6[0], is_wide6, sign6};
          end
        end
      end
      logic signed [10:0] moved;
      logic signed [7:0] zero7, low7, high7;
      assign {zero7, low7, high7} = limits7;
      assign moved = 11'(scaled7) + 11'(zero7) + $signed({10'd0, by_1[0]});
      assign limited = moved < 11'(low7) ? low7 : moved > 11'(high7) ? high7 : moved[7:0];
      assign out_wdata[lane*8+:8] = limited;
    end
  endgenerate

  logic unused;
  assign unused = &{1'b0, uop[vta_pkg::UOP_AW], at_zero, code};
endmodule
