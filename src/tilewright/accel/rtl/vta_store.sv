// The store unit: an address, its words, the next address; several answers may be on their way.
module vta_store (
    input  logic        clk,
    input  logic        rst,
    input  logic        halt,
    input  logic        start,
    input  logic [vta_pkg::STORE_BITS-1:0] task_word,
    input  logic        is_run,  // rows of neighbours
    input  logic [vta_pkg::RUN_BITS-1:0] run_last,  // bytes of a row, or of an entry, less one
    input  logic        is_finish,
    output logic        ready,
    output logic [3:0]  owned,
    output logic        done,
    output logic        done_finish,
    output logic [4:0]  done_push,
    output logic        trap,
    // the buffer behind the base register of the task
    input  logic [63:0] base_address,
    input  logic [49:0] base_bytes,
    // results
    output logic        out_re,
    output logic [vta_pkg::ACC_AW-1:0] out_raddr,
    input  logic [vta_pkg::OUT_BITS-1:0] out_rdata,
    output logic        acc_re,
    output logic [vta_pkg::ACC_AW-1:0] acc_raddr,
    input  logic [vta_pkg::ACC_BITS-1:0] acc_rdata,
    // AXI4
    output logic        awvalid,
    input  logic        awready,
    output logic [63:0] awaddr,
    output logic [7:0]  awlen,
    output logic        wvalid,
    input  logic        wready,
    output logic [vta_pkg::BUS_BITS-1:0] wdata,
    output logic [vta_pkg::BUS_BYTES-1:0] wstrb,
    output logic        wlast,
    input  logic        bvalid,
    output logic        bready
);
  localparam int AW = 50;
  localparam int EW = vta_pkg::ENTRY_BITS;
  localparam int NW = vta_pkg::EXTENT_BITS;
  localparam int AAW = vta_pkg::ACC_AW;
  localparam int BB = vta_pkg::BUS_BITS;
  localparam int BUS = vta_pkg::BUS_BYTES;
  localparam int LOG_BUS = vta_pkg::LOG_BUS_BYTES;
  localparam int LOG_OUT = vta_pkg::LOG_OUT_BYTES;
  localparam int LOG_ACC = vta_pkg::LOG_ACC_BYTES;
  localparam int WW = vta_pkg::ENTRY_WORD_BITS;
  localparam int BW = vta_pkg::BURST_WORD_BITS;

  typedef enum logic [1:0] {IDLE, ADDRESS, DATA} state_t;
  state_t state;
  logic is_acc, finish, null_task;
  logic [4:0] pushes;
  logic [3:0] banks;
  localparam logic OUT_IS_NARROW = LOG_OUT < LOG_BUS;  // than a beat
  localparam logic ACC_IS_NARROW = LOG_ACC < LOG_BUS;

  logic r_valid, r_last, r_next;
  logic [AW-1:0] r_address, r_last_byte;
  logic [7:0] r_beats;
  logic [BW-1:0] r_words;
  vta_requests #(
      .AW(AW), .LOG_0(LOG_OUT), .LOG_1(LOG_ACC), .LOG_2(LOG_OUT), .LOG_3(LOG_ACC)
  ) requests (
      .clk(clk), .rst(rst), .start(start && !is_finish), .next(r_next),
      .offset(task_word[vta_pkg::STORE_OFFSET_AT+:32]), .x(task_word[vta_pkg::STORE_X_AT+:NW]),
      .y(task_word[vta_pkg::STORE_Y_AT+:NW]), .z(task_word[vta_pkg::STORE_Z_AT+:NW]),
      .is_run(is_run), .run_last(run_last),
      .xstride(task_word[vta_pkg::STORE_XSTRIDE_AT+:24]),
      .ystride(task_word[vta_pkg::STORE_YSTRIDE_AT+:24]),
      .zstride(task_word[vta_pkg::STORE_ZSTRIDE_AT+:24]),
      .format({1'b0, task_word[vta_pkg::STORE_FMT_AT]}),
      .valid(r_valid), .last(r_last), .address(r_address), .last_byte(r_last_byte),
      .beats(r_beats), .words(r_words)
  );
  assign null_task = !r_valid;

  logic [EW:0] place;
  logic [BW-1:0] words_left;  // of the burst, behind this one
  logic [WW-1:0] word;  // of the entry
  logic last_word;
  logic [LOG_BUS-1:0] byte_at;  // in the beat, for entries narrower than it
  logic last_burst;
  logic go, step, entry_ends, beat_ends, is_narrow;

  // Answers, in order; a task without data has an entry that waits for none.
  logic pushed, popped, a_valid, a_needs, a_last, a_finish;
  logic [4:0] a_push;
  logic [3:0] a_count;
  logic [3:0] a_banks;
  assign pushed = state == ADDRESS && go;
  vta_fifo #(
      .BITS(12), .LOG_DEPTH(3)
  ) answers (
      .clk(clk), .rst(rst), .push(pushed),
      .in({!null_task, null_task || r_last, finish, pushes, is_acc ? banks : 4'd0}), .pop(popped),
      .head({a_needs, a_last, a_finish, a_push, a_banks}), .valid(a_valid), .count(a_count)
  );
  assign bready = a_valid && a_needs;
  assign popped = a_valid && (!a_needs || bvalid);

  // Banks of tasks that have not ended: of the running one, of those in the queue, of the one that
  // ends now.
  logic [3:0] starts, stops;
  assign starts = start && !is_finish && task_word[vta_pkg::STORE_FMT_AT]
                  ? task_word[vta_pkg::STORE_BANKS_AT+:4] : '0;
  logic [3:0] done_banks;
  assign stops = done ? done_banks : '0;
  genvar bank;
  generate
    for (bank = 0; bank < 4; bank = bank + 1) begin : g_bank
      logic [3:0] tasks;
      always_ff @(posedge clk) begin
        if (rst) begin
          tasks <= '0;
          owned[bank] <= 1'b0;
        end else if (starts[bank] && !stops[bank]) begin
          tasks <= tasks + 1'b1;
          owned[bank] <= 1'b1;
        end else if (stops[bank] && !starts[bank]) begin
          tasks <= tasks - 1'b1;
          owned[bank] <= tasks != 4'd1;
        end
      end
    end
  endgenerate

  logic room, crosses, outside;
  assign room = !a_count[3];
  assign crosses = !null_task && r_last_byte >= base_bytes;
  assign outside = place >= (EW + 1)'(vta_pkg::ACC_DEPTH) ||
                   (is_acc && !banks[place[AAW-1-:2]]);
  assign trap = (state == ADDRESS && !null_task && (crosses || outside)) ||
                (state == DATA && outside);
  assign awvalid = state == ADDRESS && room && !null_task && !crosses && !outside && !halt;
  assign awaddr = base_address + {14'd0, r_address[AW-1:LOG_BUS], {LOG_BUS{1'b0}}};
  assign awlen = r_beats;
  assign go = null_task ? room && !halt : awvalid && awready;
  assign r_next = pushed && !null_task;

  assign is_narrow = is_acc ? ACC_IS_NARROW : OUT_IS_NARROW;
  localparam logic [WW-1:0] OUT_LAST = WW'(LOG_OUT > LOG_BUS ? (1 << (LOG_OUT - LOG_BUS)) - 1 : 0);
  localparam logic [WW-1:0] ACC_LAST = WW'(LOG_ACC > LOG_BUS ? (1 << (LOG_ACC - LOG_BUS)) - 1 : 0);
  assign entry_ends = word == (is_acc ? ACC_LAST : OUT_LAST);
  logic [LOG_BUS:0] byte_next;
  assign byte_next = {1'b0, byte_at} +
                     (is_acc ? (LOG_BUS + 1)'(1 << LOG_ACC) : (LOG_BUS + 1)'(1 << LOG_OUT));
  assign beat_ends = !is_narrow || byte_next[LOG_BUS] || last_word;
  assign wvalid = state == DATA && beat_ends;
  assign step = state == DATA && (!beat_ends || wready);
  assign wlast = last_word;

  // The entry is read until its burst begins, and whenever the one before ends. Nothing else is read:
  // its bank may be another unit's.
  logic reads;
  logic [EW:0] reads_at;
  assign reads = (state == ADDRESS && !null_task && !outside) ||
                 (step && entry_ends && !last_word);
  assign reads_at = state == DATA ? place + 1'b1 : place;
  assign out_re = reads && !is_acc;
  assign acc_re = reads && is_acc && reads_at < (EW + 1)'(vta_pkg::ACC_DEPTH);
  assign out_raddr = reads_at[AAW-1:0];
  assign acc_raddr = reads_at[AAW-1:0];

  // The word of an entry, in its place of the beat.
  localparam int OUT_WIDE = vta_pkg::OUT_BITS > BB ? vta_pkg::OUT_BITS : BB;
  localparam int ACC_WIDE = vta_pkg::ACC_BITS > BB ? vta_pkg::ACC_BITS : BB;
  localparam logic [BUS-1:0] OUT_STROBE = OUT_IS_NARROW ? BUS'((1 << (1 << LOG_OUT)) - 1) : '1;
  localparam logic [BUS-1:0] ACC_STROBE = ACC_IS_NARROW ? BUS'((1 << (1 << LOG_ACC)) - 1) : '1;
  logic [BB-1:0] out_word, acc_word, now, kept;
  logic [BUS-1:0] strobe, kept_strobe;
  assign out_word = BB'(OUT_WIDE'(out_rdata) >> (32'(word) * BB));
  assign acc_word = BB'(ACC_WIDE'(acc_rdata) >> (32'(word) * BB));
  assign now = is_acc ? (ACC_IS_NARROW ? acc_word << {byte_at, 3'd0} : acc_word)
                      : (OUT_IS_NARROW ? out_word << {byte_at, 3'd0} : out_word);
  assign strobe = is_acc ? (ACC_IS_NARROW ? ACC_STROBE << byte_at : '1)
                         : (OUT_IS_NARROW ? OUT_STROBE << byte_at : '1);
  assign wdata = now | kept;
  assign wstrb = strobe | kept_strobe;

  assign ready = state == IDLE;
  always_ff @(posedge clk) begin
    if (state == IDLE) begin
      is_acc <= !is_finish && task_word[vta_pkg::STORE_FMT_AT];
      finish <= is_finish;
      pushes <= task_word[vta_pkg::STORE_PUSH_AT+:5];
      banks <= task_word[vta_pkg::STORE_BANKS_AT+:4];
      place <= (EW + 1)'(task_word[vta_pkg::STORE_SRAM_AT+:EW]);
      word <= '0;
    end
    if (pushed) begin
      words_left <= r_words;
      last_word <= r_words == '0;
      last_burst <= r_last;
      byte_at <= r_address[LOG_BUS-1:0];
      kept <= '0;
      kept_strobe <= '0;
    end
    if (step) begin
      words_left <= words_left - 1'b1;
      last_word <= words_left == BW'(1);
      word <= entry_ends ? '0 : word + 1'b1;
      if (entry_ends) place <= place + 1'b1;
      byte_at <= byte_next[LOG_BUS-1:0];
      kept <= beat_ends ? '0 : wdata;
      kept_strobe <= beat_ends ? '0 : wstrb;
    end
    if (rst) begin
      state <= IDLE;
    end else begin
      case (state)
        IDLE: if (start) state <= ADDRESS;
        ADDRESS: if (go) state <= null_task ? IDLE : DATA;
        default: if (step && last_word) state <= last_burst ? IDLE : ADDRESS;
      endcase
    end
    done <= popped && a_last && !rst;
    done_finish <= a_finish;
    done_push <= a_push;
    done_banks <= a_banks;
  end

  logic unused;
  assign unused = &{1'b0, a_count[2:0]};
endmodule
