// The accelerator: fetch, five queues with their units, tokens, scratchpads, one AXI4 master for
// data, one AXI4-Lite slave for the host's registers, traps and a watchdog.
//
// A task begins in the cycle in which its `begins` bit is 1, and ends in the cycle behind that of its
// `ends` bit: then others see its tokens.
module vta_top (
    input  logic        clk,
    input  logic        resetn,
    // registers: AXI4-Lite
    input  logic        s_awvalid,
    output logic        s_awready,
    input  logic [11:0] s_awaddr,
    input  logic        s_wvalid,
    output logic        s_wready,
    input  logic [31:0] s_wdata,
    output logic        s_bvalid,
    input  logic        s_bready,
    output logic [1:0]  s_bresp,
    input  logic        s_arvalid,
    output logic        s_arready,
    input  logic [11:0] s_araddr,
    output logic        s_rvalid,
    input  logic        s_rready,
    output logic [31:0] s_rdata,
    output logic [1:0]  s_rresp,
    // data: AXI4, one identifier, increasing bursts of whole beats
    output logic        m_arvalid,
    input  logic        m_arready,
    output logic [63:0] m_araddr,
    output logic [7:0]  m_arlen,
    output logic [2:0]  m_arsize,
    output logic [1:0]  m_arburst,
    input  logic        m_rvalid,
    output logic        m_rready,
    input  logic [vta_pkg::BUS_BITS-1:0] m_rdata,
    input  logic [1:0]  m_rresp,
    input  logic        m_rlast,
    output logic        m_awvalid,
    input  logic        m_awready,
    output logic [63:0] m_awaddr,
    output logic [7:0]  m_awlen,
    output logic [2:0]  m_awsize,
    output logic [1:0]  m_awburst,
    output logic        m_wvalid,
    input  logic        m_wready,
    output logic [vta_pkg::BUS_BITS-1:0] m_wdata,
    output logic [vta_pkg::BUS_BYTES-1:0] m_wstrb,
    output logic        m_wlast,
    input  logic        m_bvalid,
    output logic        m_bready,
    input  logic [1:0]  m_bresp,
    // for the host, and for those who watch
    output logic        irq,
    output logic        running,
    output logic [4:0]  begins,
    output logic [4:0]  ends
);
  localparam int BB = vta_pkg::BUS_BITS;
  localparam int BUS = vta_pkg::BUS_BYTES;
  localparam int LOG_BUS = vta_pkg::LOG_BUS_BYTES;
  localparam int NW = vta_pkg::EXTENT_BITS;
  localparam int AAW = vta_pkg::ACC_AW;
  localparam int RB = vta_pkg::RUN_BITS;
  localparam int AW = 50;

  assign m_arsize = 3'(LOG_BUS);
  assign m_awsize = 3'(LOG_BUS);
  assign m_arburst = 2'b01;
  assign m_awburst = 2'b01;
  assign s_bresp = 2'b00;
  assign s_rresp = 2'b00;

  localparam int LB = vta_pkg::LOAD_BITS;
  localparam int XB = vta_pkg::AUX_BITS;
  localparam int GB = vta_pkg::GEMM_BITS;
  localparam int UB = vta_pkg::ALU_BITS;
  localparam int SB = vta_pkg::STORE_BITS;
  localparam int LOG_QUEUE = vta_pkg::LOG_QUEUE_DEPTH;
  logic [LB-1:0] load_word;
  logic [XB-1:0] aux_word;
  logic [GB-1:0] gemm_word;
  logic [UB-1:0] alu_word;
  logic [SB-1:0] store_word;

  // ---- registers, state, traps
  logic rst, start, soft_reset, is_done, trapped, halt;
  logic [31:0] timeout, tasks, idle_cycles, trap_task, status;
  // buffers of the tasks that run, and of those at the heads of their queues
  logic [63:0] stream, load_address, aux_address, store_address;
  logic [63:0] next_load_address, next_aux_address, next_store_address;
  logic [49:0] load_bytes, aux_bytes, store_bytes;
  logic [49:0] next_load_bytes, next_aux_bytes, next_store_bytes;
  logic [4:0] buffers;
  logic [15:0] writable;
  logic [63:0] cycles, gemm_steps, read_beats, write_beats;
  logic [7:0] trap_code;
  // What stops the machine in the next cycle: code, address, tokens, bus, time. Until then nothing
  // wrong gets anywhere: addresses that are outside are not used, and results are written later.
  logic [4:0] faults;
  logic stopped, finished;
  assign rst = !resetn || soft_reset;
  assign stopped = faults != '0;  // they stay
  assign halt = !running;
  assign finished = is_done && faults == '0;
  assign status = {16'd0, trap_code, 5'd0, trapped, finished, running};
  assign irq = finished || trapped;
  vta_registers registers (
      .clk(clk), .rst(!resetn),
      .s_awvalid(s_awvalid), .s_awready(s_awready), .s_awaddr(s_awaddr), .s_wvalid(s_wvalid),
      .s_wready(s_wready), .s_wdata(s_wdata), .s_bvalid(s_bvalid), .s_bready(s_bready),
      .s_arvalid(s_arvalid), .s_arready(s_arready), .s_araddr(s_araddr), .s_rvalid(s_rvalid),
      .s_rready(s_rready), .s_rdata(s_rdata), .start(start), .reset(soft_reset),
      .timeout(timeout), .stream(stream), .tasks(tasks), .buffers(buffers), .writable(writable),
      .base_a(load_word[vta_pkg::LOAD_BASE_AT+:4]), .address_a(next_load_address),
      .bytes_a(next_load_bytes), .base_b(aux_word[vta_pkg::AUX_BASE_AT+:4]),
      .address_b(next_aux_address), .bytes_b(next_aux_bytes),
      .base_c(store_word[vta_pkg::STORE_BASE_AT+:4]), .address_c(next_store_address),
      .bytes_c(next_store_bytes),
      .status(status), .trap_task(trap_task),
      .counters({write_beats, read_beats, gemm_steps, cycles})
  );

  // ---- fetch and queues
  logic f_valid, f_taken, f_in, f_trap;
  logic [31:0] f_at, f_number;
  logic [7:0] f_beats;
  logic [4:0] q_full, q_send, q_valid;
  logic [vta_pkg::TASK_BITS-1:0] word;
  vta_fetch fetch (
      .clk(clk), .rst(rst), .running(!halt), .tasks(tasks), .buffers(buffers),
      .writable(writable), .req_valid(f_valid), .req_at(f_at), .req_beats(f_beats),
      .req_taken(f_taken), .in_valid(f_in), .in_data(m_rdata), .full(q_full), .send(q_send),
      .task_word(word), .trap(f_trap), .number(f_number)
  );

  logic [LOG_QUEUE:0] load_count, aux_count, gemm_count, alu_count, store_count;
  function automatic logic [4:0] load_log(input logic [1:0] fmt);
    case (fmt)
      2'd0: load_log = 5'(vta_pkg::LOG_INP_BYTES);
      2'd1: load_log = 5'(vta_pkg::LOG_WGT_BYTES);
      default: load_log = 5'(vta_pkg::LOG_WGT_BYTES - 1);
    endcase
  endfunction
  function automatic logic [4:0] aux_log(input logic [1:0] fmt);
    case (fmt)
      2'd0: aux_log = 5'(vta_pkg::LOG_ACC_BYTES);
      2'd2: aux_log = 5'd3;
      default: aux_log = 5'(vta_pkg::LOG_OUT_BYTES);
    endcase
  endfunction
  function automatic logic [4:0] store_log(input logic fmt);
    store_log = fmt ? 5'(vta_pkg::LOG_ACC_BYTES) : 5'(vta_pkg::LOG_OUT_BYTES);
  endfunction

  // Rows of neighbours are runs of bytes. How many is told here, since much depends on it in the
  // cycle in which a task begins.
  logic is_run, load_is_run, aux_is_run, store_is_run;
  logic [RB-1:0] last_entry, load_run, aux_run, store_run;  // less one; of runs: bytes
  assign is_run = word[vta_pkg::LOAD_XSTRIDE_AT+:24] == 24'd1;
  assign last_entry = is_run ? RB'(word[vta_pkg::LOAD_X_AT+:NW]) - 1'b1 : '0;
  function automatic logic [RB-1:0] last_of(input logic [RB-1:0] entry, input logic [4:0] log_width);
    last_of = (entry << log_width) | ~({RB{1'b1}} << log_width);
  endfunction
  function automatic logic [RB-1:0] load_last(input logic [RB-1:0] entry, input logic [1:0] fmt);
    case (fmt)
      2'd0: load_last = last_of(entry, load_log(2'd0));
      2'd1: load_last = last_of(entry, load_log(2'd1));
      default: load_last = last_of(entry, load_log(2'd2));
    endcase
  endfunction
  function automatic logic [RB-1:0] aux_last(input logic [RB-1:0] entry, input logic [1:0] fmt);
    case (fmt)
      2'd0: aux_last = last_of(entry, aux_log(2'd0));
      2'd2: aux_last = last_of(entry, aux_log(2'd2));
      default: aux_last = last_of(entry, aux_log(2'd1));
    endcase
  endfunction
  function automatic logic [RB-1:0] store_last(input logic [RB-1:0] entry, input logic fmt);
    store_last = fmt ? last_of(entry, store_log(1'b1)) : last_of(entry, store_log(1'b0));
  endfunction
  vta_fifo #(.BITS(LB + 1 + RB), .LOG_DEPTH(LOG_QUEUE)) load_queue (
      .clk(clk), .rst(rst), .push(q_send[0]),
      .in({load_last(last_entry, word[vta_pkg::LOAD_FMT_AT+:2]), is_run, word[LB-1:0]}),
      .pop(begins[0]), .head({load_run, load_is_run, load_word}),
      .valid(q_valid[0]), .count(load_count));
  vta_fifo #(.BITS(XB + 1 + RB), .LOG_DEPTH(LOG_QUEUE)) aux_queue (
      .clk(clk), .rst(rst), .push(q_send[1]),
      .in({aux_last(last_entry, word[vta_pkg::AUX_FMT_AT+:2]), is_run, word[XB-1:0]}),
      .pop(begins[1]), .head({aux_run, aux_is_run, aux_word}),
      .valid(q_valid[1]), .count(aux_count));
  vta_fifo #(.BITS(GB), .LOG_DEPTH(LOG_QUEUE)) gemm_queue (
      .clk(clk), .rst(rst), .push(q_send[2]), .in(word[GB-1:0]), .pop(begins[2]),
      .head(gemm_word), .valid(q_valid[2]), .count(gemm_count));
  vta_fifo #(.BITS(UB), .LOG_DEPTH(LOG_QUEUE)) alu_queue (
      .clk(clk), .rst(rst), .push(q_send[3]), .in(word[UB-1:0]), .pop(begins[3]),
      .head(alu_word), .valid(q_valid[3]), .count(alu_count));
  vta_fifo #(.BITS(SB + 1 + RB), .LOG_DEPTH(LOG_QUEUE)) store_queue (
      .clk(clk), .rst(rst), .push(q_send[4]),
      .in({store_last(last_entry, word[vta_pkg::STORE_FMT_AT]), is_run, word[SB-1:0]}),
      .pop(begins[4]), .head({store_run, store_is_run, store_word}),
      .valid(q_valid[4]), .count(store_count));
  assign q_full = {store_count[LOG_QUEUE], alu_count[LOG_QUEUE], gemm_count[LOG_QUEUE],
                   aux_count[LOG_QUEUE], load_count[LOG_QUEUE]};

  // ---- tokens, and who begins
  logic [24:0] give, there;
  logic overflow;
  logic [24:0] pops, pushes;  // by unit
  logic [4:0] has_tokens, ready;
  vta_tokens tokens (
      .clk(clk), .rst(rst), .give(give), .pops(pops), .begins(begins), .there(there),
      .overflow(overflow)
  );
  assign pops = {store_word[vta_pkg::STORE_POP_AT+:5], alu_word[vta_pkg::ALU_POP_AT+:5],
                 gemm_word[vta_pkg::GEMM_POP_AT+:5], aux_word[vta_pkg::AUX_POP_AT+:5],
                 load_word[vta_pkg::LOAD_POP_AT+:5]};
  genvar own, other;
  generate
    for (own = 0; own < 5; own = own + 1) begin : g_own
      logic [4:0] lacks;
      assign has_tokens[own] = lacks == '0;
      for (other = 0; other < 5; other = other + 1) begin : g_other
        assign lacks[other] = pops[own*5+other] && !there[other*5+own];
        assign give[own*5+other] = ends[own] && pushes[own*5+other];
      end
    end
  endgenerate

  // GEMM goes before ALU, ALU before store; what they have in common is known before one begins.
  logic gemm_stalls, alu_stalls, store_is_finish, gemm_can, alu_can, store_can;
  logic [3:0] gemm_own, alu_own, store_own, gemm_banks, alu_banks, store_banks;
  logic alu_meets_gemm, store_meets_gemm, store_meets_alu;
  assign store_is_finish = store_word[2:0] == 3'(vta_pkg::OP_FINISH);
  assign gemm_banks = gemm_word[vta_pkg::GEMM_BANKS_AT+:4];
  assign alu_banks = alu_word[vta_pkg::ALU_BANKS_AT+:4];
  assign store_banks = store_is_finish || !store_word[vta_pkg::STORE_FMT_AT] ? '0 :
                       store_word[vta_pkg::STORE_BANKS_AT+:4];
  assign alu_meets_gemm = (alu_banks & gemm_banks) != '0;
  assign store_meets_gemm = (store_banks & gemm_banks) != '0;
  assign store_meets_alu = (store_banks & alu_banks) != '0;
  assign gemm_can = running && q_valid[2] && has_tokens[2] && ready[2] && !gemm_stalls &&
                    (gemm_banks & (alu_own | store_own)) == '0;
  assign alu_can = running && q_valid[3] && has_tokens[3] && ready[3] && !alu_stalls &&
                   (alu_banks & (gemm_own | store_own)) == '0;
  assign store_can = running && q_valid[4] && has_tokens[4] && ready[4] &&
                     (store_banks & (gemm_own | alu_own)) == '0;
  logic alu_begins;
  assign alu_begins = alu_can && !(gemm_can && alu_meets_gemm);
  assign begins[0] = running && q_valid[0] && has_tokens[0] && ready[0];
  assign begins[1] = running && q_valid[1] && has_tokens[1] && ready[1];
  assign begins[2] = gemm_can;
  assign begins[3] = alu_begins;
  assign begins[4] = store_can && !(gemm_can && store_meets_gemm) &&
                     !(alu_begins && store_meets_alu);

  // ---- requests of load and aux
  function automatic logic [4:0] at_most_bus(input logic [4:0] log_width);
    at_most_bus = log_width < 5'(LOG_BUS) ? log_width : 5'(LOG_BUS);
  endfunction
  function automatic logic is_odd(input logic [31:0] offset, input logic [4:0] log_width);
    is_odd = (offset & ((32'd1 << at_most_bus(log_width)) - 1'b1)) != '0;
  endfunction

  logic [4:0] load_lw, aux_lw, load_width, aux_width;
  assign load_lw = load_log(load_word[vta_pkg::LOAD_FMT_AT+:2]);
  assign aux_lw = aux_log(aux_word[vta_pkg::AUX_FMT_AT+:2]);
  logic l_valid, l_last, l_grant, x_valid, x_last, x_grant;
  logic [AW-1:0] l_address, l_last_byte, x_address, x_last_byte;
  localparam int BW = vta_pkg::BURST_WORD_BITS;
  logic [7:0] l_beats, x_beats;
  logic [BW-1:0] l_words, x_words;
  vta_requests #(
      .AW(AW), .LOG_0(vta_pkg::LOG_INP_BYTES), .LOG_1(vta_pkg::LOG_WGT_BYTES),
      .LOG_2(vta_pkg::LOG_WGT_BYTES - 1), .LOG_3(vta_pkg::LOG_WGT_BYTES - 1)
  ) load_requests (
      .clk(clk), .rst(rst), .start(begins[0]), .next(l_grant),
      .offset(load_word[vta_pkg::LOAD_OFFSET_AT+:32]), .x(load_word[vta_pkg::LOAD_X_AT+:NW]),
      .y(load_word[vta_pkg::LOAD_Y_AT+:NW]), .z(load_word[vta_pkg::LOAD_Z_AT+:NW]),
      .is_run(load_is_run), .run_last(load_run),
      .xstride(load_word[vta_pkg::LOAD_XSTRIDE_AT+:24]),
      .ystride(load_word[vta_pkg::LOAD_YSTRIDE_AT+:24]),
      .zstride(load_word[vta_pkg::LOAD_ZSTRIDE_AT+:24]), .format(load_word[vta_pkg::LOAD_FMT_AT+:2]),
      .valid(l_valid),
      .last(l_last), .address(l_address), .last_byte(l_last_byte), .beats(l_beats), .words(l_words)
  );
  vta_requests #(
      .AW(AW), .LOG_0(vta_pkg::LOG_ACC_BYTES), .LOG_1(vta_pkg::LOG_OUT_BYTES), .LOG_2(3),
      .LOG_3(vta_pkg::LOG_OUT_BYTES)
  ) aux_requests (
      .clk(clk), .rst(rst), .start(begins[1]), .next(x_grant),
      .offset(aux_word[vta_pkg::AUX_OFFSET_AT+:32]), .x(aux_word[vta_pkg::AUX_X_AT+:NW]),
      .y(aux_word[vta_pkg::AUX_Y_AT+:NW]), .z(aux_word[vta_pkg::AUX_Z_AT+:NW]),
      .is_run(aux_is_run), .run_last(aux_run),
      .xstride(aux_word[vta_pkg::AUX_XSTRIDE_AT+:24]),
      .ystride(aux_word[vta_pkg::AUX_YSTRIDE_AT+:24]),
      .zstride(aux_word[vta_pkg::AUX_ZSTRIDE_AT+:24]), .format(aux_word[vta_pkg::AUX_FMT_AT+:2]),
      .valid(x_valid),
      .last(x_last), .address(x_address), .last_byte(x_last_byte), .beats(x_beats), .words(x_words)
  );
  always_ff @(posedge clk) begin
    if (!l_valid) begin
      {load_address, load_bytes} <= {next_load_address, next_load_bytes};
      load_width <= load_lw;
    end
    if (!x_valid) begin
      {aux_address, aux_bytes} <= {next_aux_address, next_aux_bytes};
      aux_width <= aux_lw;
    end
    if (ready[4]) {store_address, store_bytes} <= {next_store_address, next_store_bytes};
  end

  // One request a cycle: fetch before aux before load. One that waits for the bus stays. One that
  // crosses the end of its buffer has its turn, but does not reach the bus: its unit goes on, which
  // has no effect any more, since there is a trap in the next cycle.
  logic [3:0] l_flying, x_flying;
  logic l_crosses, x_crosses, l_wants, x_wants, f_goes, x_goes, l_goes, held, granted;
  logic [1:0] held_by, goes;
  assign l_crosses = l_valid && l_last_byte >= load_bytes;
  assign x_crosses = x_valid && x_last_byte >= aux_bytes;
  assign l_wants = l_valid && !l_flying[3] && !halt;
  assign x_wants = x_valid && !x_flying[3] && !halt;
  assign f_goes = held ? held_by == 2'd2 : f_valid;
  assign x_goes = held ? held_by == 2'd1 : x_wants && !f_valid;
  assign l_goes = held ? held_by == 2'd0 : l_wants && !x_wants && !f_valid;
  assign goes = f_goes ? 2'd2 : x_goes ? 2'd1 : 2'd0;
  assign m_arvalid = f_goes || (x_goes && !x_crosses) || (l_goes && !l_crosses);
  assign granted = m_arvalid && m_arready;
  assign f_taken = f_goes && m_arready;
  assign x_grant = x_goes && m_arready;
  assign l_grant = l_goes && m_arready;
  assign m_araddr = f_goes ? stream + {32'd0, f_at << vta_pkg::LOG_WORD_BYTES} :
      x_goes ? aux_address + {14'd0, x_address[AW-1:LOG_BUS], {LOG_BUS{1'b0}}} :
               load_address + {14'd0, l_address[AW-1:LOG_BUS], {LOG_BUS{1'b0}}};
  assign m_arlen = f_goes ? f_beats : x_goes ? x_beats : l_beats;

  // Answers come in the order of requests: whose they are, and how words lie in them.
  localparam int OB = 2 + LOG_BUS + 3 + BW;
  logic o_valid, o_pop;
  logic [5:0] o_count;
  logic [OB-1:0] o_in, o_head;
  logic [1:0] o_unit;
  logic [LOG_BUS-1:0] o_byte;
  logic [2:0] o_log;
  logic [BW-1:0] o_words;  // less one
  assign o_in = {goes,
      f_goes ? LOG_BUS'(0) : x_goes ? x_address[LOG_BUS-1:0] : l_address[LOG_BUS-1:0],
      f_goes ? 3'(LOG_BUS) : 3'(at_most_bus(x_goes ? aux_width : load_width)),
      f_goes ? BW'(f_beats) : x_goes ? x_words : l_words};
  vta_fifo #(.BITS(OB), .LOG_DEPTH(5)) order (
      .clk(clk), .rst(rst), .push(granted), .in(o_in), .pop(o_pop), .head(o_head),
      .valid(o_valid), .count(o_count)
  );
  assign {o_unit, o_byte, o_log, o_words} = o_head;

  logic r_first, r_last, r_beat_ends, r_take, l_ready, x_ready, r_sink;
  logic [LOG_BUS-1:0] r_byte, r_next_byte;
  logic [LOG_BUS:0] r_sum;
  logic [BW-1:0] r_done;
  logic [BB-1:0] r_data;
  assign r_byte = r_first ? o_byte : r_next_byte;
  assign r_sum = {1'b0, r_byte} + (LOG_BUS + 1)'(1 << o_log);
  assign r_last = r_done == o_words;
  assign r_beat_ends = o_log == 3'(LOG_BUS) || r_sum[LOG_BUS] || r_last;
  assign r_sink = o_unit == 2'd2 ? 1'b1 : o_unit == 2'd1 ? x_ready : l_ready;
  assign m_rready = halt || (o_valid && r_sink && r_beat_ends);
  assign r_take = m_rvalid && o_valid && r_sink && !halt;
  assign r_data = o_log == 3'(LOG_BUS) ? m_rdata : m_rdata >> {r_byte, 3'd0};
  assign o_pop = r_take && r_last;
  assign f_in = r_take && o_unit == 2'd2;
  always_ff @(posedge clk) begin
    if (rst) begin
      r_first <= 1'b1;
      r_done <= '0;
      held <= 1'b0;
      {l_flying, x_flying} <= '0;
    end else begin
      if (r_take) begin
        r_first <= r_last;
        r_done <= r_last ? '0 : r_done + 1'b1;
        r_next_byte <= r_sum[LOG_BUS-1:0];
      end
      held <= m_arvalid && !m_arready;
      held_by <= goes;
      l_flying <= l_flying + {3'd0, l_grant} - {3'd0, o_pop && o_unit == 2'd0};
      x_flying <= x_flying + {3'd0, x_grant} - {3'd0, o_pop && o_unit == 2'd1};
    end
  end

  // ---- load: activations and weights
  localparam int EX = NW + 1;
  localparam int WW = vta_pkg::ENTRY_WORD_BITS;
  localparam int IL = vta_pkg::INP_LANES;
  localparam int ILB = vta_pkg::INP_LANE_BITS;
  localparam int GL = vta_pkg::WGT_LANES;
  localparam int GLB = vta_pkg::WGT_LANE_BITS;
  localparam int W4_WORDS = GL > 1 ? GL / 2 : 1;
  logic l_full, l_write, l_pad, l_last_word, l_begins_row;
  logic [1:0] l_fmt;
  logic [EX-1:0] l_place;
  logic [WW-1:0] l_word, l_end;
  logic [31:0] l_value;
  assign l_end = l_fmt == 2'd0 ? WW'(IL - 1) : l_fmt == 2'd1 ? WW'(GL - 1) : WW'(W4_WORDS - 1);
  vta_writer load_writer (
      .clk(clk), .rst(rst), .halt(halt), .push(begins[0]), .task_word(load_word), .full(l_full),
      .in_valid(m_rvalid && o_valid && o_unit == 2'd0), .in_ready(l_ready), .write(l_write),
      .is_pad(l_pad), .is_last_word(l_last_word), .begins_row(l_begins_row), .fmt(l_fmt),
      .place(l_place), .word(l_word), .value(l_value), .last_word(l_end),
      .done(ends[0]), .done_push(pushes[4:0])
  );
  assign ready[0] = !l_valid && !l_full;
  logic l_outside;
  assign l_outside = l_write && l_place >= (l_fmt == 2'd0 ? EX'(vta_pkg::INP_DEPTH)
                                                          : EX'(vta_pkg::WGT_DEPTH));
  logic [IL-1:0] inp_we;
  logic [IL*ILB-1:0] inp_wdata;
  logic [GL-1:0] wgt_we;
  logic [GL*GLB-1:0] wgt_wdata;
  genvar lane, i;
  generate
    for (lane = 0; lane < IL; lane = lane + 1) begin : g_inp
      assign inp_we[lane] = l_write && !l_outside && l_fmt == 2'd0 &&
                            (l_pad || l_word == WW'(lane));
      assign inp_wdata[lane*ILB+:ILB] = l_pad ? {(ILB / 8) {l_value[7:0]}} : r_data[ILB-1:0];
    end
    for (lane = 0; lane < GL; lane = lane + 1) begin : g_wgt
      logic [GLB-1:0] wide;  // of words of 4 bits: two lanes a word
      for (i = 0; i < GLB / 8; i = i + 1) begin : g_nibble
        localparam int AT = (GL > 1 ? (lane % 2) * (GLB / 2) : 0) + i * 4;
        assign wide[i*8+:8] = {{4{r_data[AT+3]}}, r_data[AT+:4]};
      end
      assign wgt_we[lane] = l_write && !l_outside && l_fmt != 2'd0 && (l_pad ||
          (l_fmt == 2'd1 ? l_word == WW'(lane) : l_word == WW'(lane / 2)));
      assign wgt_wdata[lane*GLB+:GLB] = l_pad ? {(GLB / 8) {l_value[7:0]}} :
                                        l_fmt == 2'd1 ? r_data[GLB-1:0] : wide;
    end
  endgenerate

  // ---- aux: accumulators and microcode
  localparam int AB = vta_pkg::ACC_BITS;
  localparam int CLB = AB < BB ? AB : BB;  // lanes of an entry that is put together
  localparam int CL = AB / CLB;
  localparam int A8_WORDS = vta_pkg::OUT_BYTES > BUS ? vta_pkg::OUT_BYTES / BUS : 1;
  localparam int PER_A8 = CL / A8_WORDS;  // lanes that a word of 8-bit elements fills
  localparam int OLD = 8 * (vta_pkg::TAPS - 1);  // bits of neighbours, where an entry has them
  logic x_full, x_write, x_pad, x_last_word, x_begins_row, uop_we;
  logic [1:0] x_fmt;
  logic [EX-1:0] x_place;
  logic [WW-1:0] x_word, x_end;
  logic [31:0] x_value;
  logic [AB-1:0] aux_wdata;
  logic [vta_pkg::BANK_AW-1:0] aux_waddr;
  assign x_end = x_fmt == 2'd0 ? WW'(CL - 1) : x_fmt == 2'd2 ? '0 : WW'(A8_WORDS - 1);
  vta_writer aux_writer (
      .clk(clk), .rst(rst), .halt(halt), .push(begins[1]), .task_word(aux_word), .full(x_full),
      .in_valid(m_rvalid && o_valid && o_unit == 2'd1), .in_ready(x_ready), .write(x_write),
      .is_pad(x_pad), .is_last_word(x_last_word), .begins_row(x_begins_row), .fmt(x_fmt),
      .place(x_place), .word(x_word), .value(x_value), .last_word(x_end),
      .done(ends[1]), .done_push(pushes[9:5])
  );
  assign ready[1] = !x_valid && !x_full;
  logic x_outside;
  assign x_outside = x_write && x_place >= (x_fmt == 2'd2 ? EX'(vta_pkg::UOP_DEPTH)
                                                          : EX'(vta_pkg::ACC_DEPTH));
  logic aux_writes;
  assign aux_writes = x_write && !x_outside && x_fmt != 2'd2 && x_last_word && !rst;
  assign uop_we = x_write && !x_outside && x_fmt == 2'd2;
  always_ff @(posedge clk) begin
    aux_bank <= {3'd0, aux_writes} << x_place[AAW-1-:2];
    aux_waddr <= x_place[vta_pkg::BANK_AW-1:0];
  end
  generate
    for (lane = 0; lane < CL; lane = lane + 1) begin : g_aux
      logic [CLB-1:0] wide, row;
      for (i = 0; i < CLB / 32; i = i + 1) begin : g_byte
        localparam int AT = (lane % PER_A8) * (CLB / 4) + i * 8;
        logic [7:0] newest;
        logic [31:0] older;  // what is left of the entry in front
        assign wide[i*32+:32] = {{24{r_data[AT+7]}}, r_data[AT+:8]};
        assign newest = x_pad ? x_value[7:0] : r_data[AT+:8];
        assign older = x_begins_row ? '0 : aux_wdata[lane*CLB+i*32+:32] >> 8;
        assign row[i*32+:32] = older | (32'(newest) << OLD);
      end
      always_ff @(posedge clk) begin
        if (x_write && x_fmt == 2'd3 && (x_pad || x_word == WW'(lane / PER_A8)))
          aux_wdata[lane*CLB+:CLB] <= row;
        else if (x_write && x_pad) aux_wdata[lane*CLB+:CLB] <= {(CLB / 32) {x_value}};
        else if (x_write && x_fmt == 2'd0 && x_word == WW'(lane))
          aux_wdata[lane*CLB+:CLB] <= r_data[CLB-1:0];
        else if (x_write && x_fmt == 2'd1 && x_word == WW'(lane / PER_A8))
          aux_wdata[lane*CLB+:CLB] <= wide;
      end
    end
  endgenerate

  // ---- GEMM, ALU, store and the accumulators
  logic [3:0] aux_bank;  // that is written
  assign gemm_stalls = (aux_bank & gemm_own) != '0;
  assign alu_stalls = (aux_bank & alu_own) != '0;

  logic gemm_trap, alu_trap, store_trap, gemm_stepped, store_finish;
  logic g_re, g_we, g_writes, u_we, s_acc_re, s_out_re, out_we;
  logic [AAW-1:0] g_raddr, g_waddr, u_waddr, s_acc_raddr, s_out_raddr, out_waddr;
  logic [AB-1:0] g_rdata, g_wdata, u_wdata, s_acc_rdata;
  logic [3:0] u_re;
  logic [4*vta_pkg::BANK_AW-1:0] u_raddr;
  logic [4*AB-1:0] u_rdata;
  logic [vta_pkg::OUT_BITS-1:0] out_wdata, out_rdata;
  vta_gemm gemm (
      .clk(clk), .rst(rst), .en(running && !gemm_stalls), .start(begins[2]), .task_word(gemm_word),
      .ready(ready[2]), .owned(gemm_own), .done(ends[2]), .done_push(pushes[14:10]),
      .trap(gemm_trap), .stepped(gemm_stepped), .uop_we(uop_we),
      .uop_waddr(x_place[vta_pkg::UOP_AW-1:0]), .uop_wdata(x_pad ? 64'd0 : r_data[63:0]),
      .inp_we(inp_we), .inp_waddr(l_place[vta_pkg::INP_AW-1:0]), .inp_wdata(inp_wdata),
      .wgt_we(wgt_we), .wgt_waddr(l_place[vta_pkg::WGT_AW-1:0]), .wgt_wdata(wgt_wdata),
      .acc_re(g_re), .acc_raddr(g_raddr), .acc_rdata(g_rdata), .acc_we(g_we),
      .acc_writes(g_writes), .acc_waddr(g_waddr), .acc_wdata(g_wdata)
  );
  vta_alu alu (
      .clk(clk), .rst(rst), .en(running && !alu_stalls), .start(begins[3]), .task_word(alu_word),
      .ready(ready[3]), .owned(alu_own), .done(ends[3]), .done_push(pushes[19:15]),
      .trap(alu_trap), .uop_we(uop_we), .uop_waddr(x_place[vta_pkg::UOP_AW-1:0]),
      .uop_wdata(x_pad ? 64'd0 : r_data[63:0]), .acc_re(u_re), .acc_raddr(u_raddr),
      .acc_rdata(u_rdata), .acc_we(u_we), .acc_waddr(u_waddr), .acc_wdata(u_wdata),
      .out_we(out_we), .out_waddr(out_waddr), .out_wdata(out_wdata)
  );
  vta_store store (
      .clk(clk), .rst(rst), .halt(halt), .start(begins[4]), .task_word(store_word),
      .is_run(store_is_run), .run_last(store_run), .is_finish(store_is_finish), .ready(ready[4]),
      .owned(store_own), .done(ends[4]),
      .done_finish(store_finish), .done_push(pushes[24:20]), .trap(store_trap),
      .base_address(store_address), .base_bytes(store_bytes),
      .out_re(s_out_re), .out_raddr(s_out_raddr), .out_rdata(out_rdata), .acc_re(s_acc_re),
      .acc_raddr(s_acc_raddr), .acc_rdata(s_acc_rdata), .awvalid(m_awvalid),
      .awready(m_awready), .awaddr(m_awaddr), .awlen(m_awlen), .wvalid(m_wvalid),
      .wready(m_wready), .wdata(m_wdata), .wstrb(m_wstrb), .wlast(m_wlast), .bvalid(m_bvalid),
      .bready(m_bready)
  );
  vta_acc accumulators (
      .clk(clk), .gemm_re(g_re), .gemm_raddr(g_raddr), .gemm_rdata(g_rdata), .gemm_we(g_we),
      .gemm_writes(g_writes), .gemm_waddr(g_waddr), .gemm_wdata(g_wdata), .alu_re(u_re), .alu_raddr(u_raddr),
      .alu_rdata(u_rdata), .alu_we(u_we), .alu_waddr(u_waddr), .alu_wdata(u_wdata),
      .store_re(s_acc_re), .store_raddr(s_acc_raddr), .store_rdata(s_acc_rdata), .aux_bank(aux_bank),
      .aux_waddr(aux_waddr), .aux_wdata(aux_wdata)
  );
  vta_ram #(
      .DEPTH(vta_pkg::ACC_DEPTH), .LANES(1), .LANE_BITS(vta_pkg::OUT_BITS), .AW(AAW)
  ) out (
      .clk(clk), .we(out_we), .waddr(out_waddr), .wdata(out_wdata), .re(s_out_re),
      .raddr(s_out_raddr), .rdata(out_rdata)
  );

  // ---- traps, watchdog, counters
  logic bad_offset, address_trap, bus_trap, late;
  logic progress, read_beat, write_beat;  // of the cycle before
  assign bad_offset =
      (begins[0] && is_odd(load_word[vta_pkg::LOAD_OFFSET_AT+:32], load_lw)) ||
      (begins[1] && is_odd(aux_word[vta_pkg::AUX_OFFSET_AT+:32], aux_lw)) ||
      (begins[4] && !store_is_finish && is_odd(store_word[vta_pkg::STORE_OFFSET_AT+:32],
          store_log(store_word[vta_pkg::STORE_FMT_AT])));
  assign address_trap = bad_offset || l_crosses || x_crosses || l_outside ||
                        x_outside || gemm_trap || alu_trap || store_trap;
  assign bus_trap = (m_rvalid && m_rready && m_rresp != 2'b00) ||
                    (m_bvalid && m_bready && m_bresp != 2'b00) ||
                    (f_in && r_last && !m_rlast);
  assign late = idle_cycles >= timeout;

  // The stream has ended with its last task, which `finish` is in any that is right.
  function automatic logic [6:0] ones(input logic [4:0] units);
    ones = 7'(units[0]) + 7'(units[1]) + 7'(units[2]) + 7'(units[3]) + 7'(units[4]);
  endfunction
  // Tasks that have begun and not ended, without those that began in the cycle before; with them.
  logic [6:0] in_flight, all_in_flight;
  logic [4:0] began;
  logic had_finish;
  assign all_in_flight = in_flight + ones(began);
  always_ff @(posedge clk) begin
    if (rst) begin
      {running, is_done, trapped} <= '0;
      trap_code <= '0;
      idle_cycles <= '0;
      in_flight <= '0;
      began <= '0;
      had_finish <= 1'b0;
      {cycles, gemm_steps, read_beats, write_beats} <= '0;
      faults <= '0;
      {progress, read_beat, write_beat} <= '0;
    end else begin
      if (start) running <= 1'b1;
      if (running) begin
        cycles <= cycles + 1'b1;
        gemm_steps <= gemm_steps + {63'd0, gemm_stepped};
        idle_cycles <= progress ? '0 : idle_cycles + 1'b1;
        in_flight <= all_in_flight - ones(ends);
        began <= begins;
        if (ends[4] && store_finish) had_finish <= 1'b1;
        if ((had_finish || (ends[4] && store_finish)) && q_valid == '0 &&
            all_in_flight == ones(ends)) begin
          running <= 1'b0;
          is_done <= 1'b1;
        end
        if (!stopped) faults <= {late, bus_trap, overflow, address_trap, f_trap};
      end
      progress <= begins != '0 || ends != '0 || (m_rvalid && m_rready) ||
                  (m_wvalid && m_wready) || (m_bvalid && m_bready);
      read_beat <= m_rvalid && m_rready && running;
      write_beat <= m_wvalid && m_wready && running;
      read_beats <= read_beats + {63'd0, read_beat};
      write_beats <= write_beats + {63'd0, write_beat};
      if (!trapped && faults != '0) begin
        running <= 1'b0;
        trapped <= 1'b1;
        trap_task <= faults[0] ? f_number : '1;
        trap_code <= faults[0] ? 8'd1 : faults[1] ? 8'd2 : faults[2] ? 8'd3 : faults[3] ? 8'd6
                                                                                   : 8'd4;
      end
    end
  end

  vta_checks checks (
      .clk(clk), .rst(rst || stopped), .arvalid(m_arvalid), .arready(m_arready), .araddr(m_araddr),
      .arlen(m_arlen), .awvalid(m_awvalid), .awready(m_awready), .awaddr(m_awaddr),
      .awlen(m_awlen), .wvalid(m_wvalid), .wready(m_wready), .wdata(m_wdata), .wlast(m_wlast),
      .rvalid(m_rvalid), .rready(m_rready), .rlast(m_rlast), .r_last(r_last), .r_counts(r_take),
      .gemm_own(gemm_own), .alu_own(alu_own), .store_own(store_own)
  );

  logic unused;
  assign unused = &{1'b0, l_last, x_last, o_count, l_last_word, l_begins_row, l_value[31:8]};
endmodule
