// Instructions: asked for two bursts ahead, checked, sent one a cycle to the queue of their unit.
module vta_fetch (
    input  logic        clk,
    input  logic        rst,
    input  logic        running,
    input  logic [31:0] tasks,
    input  logic [4:0]  buffers,
    input  logic [15:0] writable,
    // requests and words
    output logic        req_valid,
    output logic [31:0] req_at,  // instructions from the beginning
    output logic [7:0]  req_beats,  // less one
    input  logic        req_taken,
    input  logic        in_valid,
    input  logic [vta_pkg::BUS_BITS-1:0] in_data,
    // instructions
    input  logic [4:0]  full,
    output logic [4:0]  send,
    output logic [vta_pkg::TASK_BITS-1:0] task_word,
    output logic        trap,
    output logic [31:0] number
);
  localparam int LOG_PER_WORD = vta_pkg::LOG_WORD_BYTES - vta_pkg::LOG_BUS_BYTES;
  localparam int PER_WORD = 1 << LOG_PER_WORD;
  localparam int LOG_CHUNK = vta_pkg::LOG_BURST_BEATS - LOG_PER_WORD;
  localparam int CHUNK = 1 << LOG_CHUNK;

  logic [31:0] asked, left, sent, unsent;  // left: to be asked for; unsent: behind this one
  logic [LOG_CHUNK+1:0] ahead;  // instructions that are asked for and not sent
  logic has_left, is_last;
  // Beats of a word that have fields are kept, and whether there is anything in others.
  localparam int KEPT = vta_pkg::TASK_BITS / vta_pkg::BUS_BITS + 1;
  localparam int KB = KEPT * vta_pkg::BUS_BITS;
  logic [KB-1:0] part, next_part, whole;  // of a word; with this beat, which is the last one
  logic [vta_pkg::TASK_BITS-1:0] word;
  logic part_beyond, beyond;
  // Whether there is anything behind the fields of an instruction, by its code.
  logic [7:0] excess, word_excess;
  logic [LOG_PER_WORD-1:0] beat;
  logic is_whole, arrived, is_kept;
  logic [LOG_CHUNK+1:0] waiting;
  assign is_kept = 32'(beat) < KEPT;
  assign next_part = is_kept ? KB'({in_data, part} >> vta_pkg::BUS_BITS) : part;
  assign whole = KEPT == PER_WORD ? KB'({in_data, part} >> vta_pkg::BUS_BITS) : part;
  assign beyond = (beat != '0 && part_beyond) || (!is_kept && in_data != '0);
  assign is_whole = in_valid && beat == LOG_PER_WORD'(PER_WORD - 1);
  vta_fifo #(
      .BITS(8 + vta_pkg::TASK_BITS), .LOG_DEPTH(LOG_CHUNK + 1)
  ) words (
      .clk(clk), .rst(rst), .push(is_whole), .in({excess, whole[vta_pkg::TASK_BITS-1:0]}),
      .pop(send != '0), .head({word_excess, word}), .valid(arrived), .count(waiting)
  );
  always_comb begin
    excess = '1;
    excess[vta_pkg::OP_LOAD] = beyond || whole[KB-1:vta_pkg::LOAD_BITS] != '0;
    excess[vta_pkg::OP_AUX] = beyond || whole[KB-1:vta_pkg::AUX_BITS] != '0;
    excess[vta_pkg::OP_GEMM] = beyond || whole[KB-1:vta_pkg::GEMM_BITS] != '0;
    excess[vta_pkg::OP_ALU] = beyond || whole[KB-1:vta_pkg::ALU_BITS] != '0;
    excess[vta_pkg::OP_STORE] = beyond || whole[KB-1:vta_pkg::STORE_BITS] != '0;
    excess[vta_pkg::OP_FINISH] = beyond || whole[KB-1:vta_pkg::FINISH_BITS] != '0;
  end

  assign req_valid = running && has_left && ahead <= (LOG_CHUNK + 2)'(CHUNK);
  assign req_at = asked;
  logic [LOG_CHUNK+1:0] count;
  assign count = left < 32'(CHUNK) ? left[LOG_CHUNK+1:0] : (LOG_CHUNK + 2)'(CHUNK);
  assign req_beats = 8'((32'(count) << LOG_PER_WORD) - 1'b1);

  assign task_word = word;
  assign number = sent;
  logic have, good, is_transfer;
  logic [2:0] op;
  logic [4:0] to;
  logic [3:0] base;
  logic [4:0] tokens;
  assign have = running && arrived;
  assign op = word[2:0];
  assign is_transfer = op == 3'(vta_pkg::OP_LOAD) || op == 3'(vta_pkg::OP_AUX) ||
                       op == 3'(vta_pkg::OP_STORE);
  assign base = word[vta_pkg::LOAD_BASE_AT+:4];
  assign tokens = word[vta_pkg::LOAD_POP_AT+:5] | word[vta_pkg::LOAD_PUSH_AT+:5];
  logic [1:0] fmt;
  assign fmt = word[vta_pkg::LOAD_FMT_AT+:2];
  always_comb begin
    to = '0;
    good = 1'b1;
    case (op)
      3'(vta_pkg::OP_LOAD): begin
        to = 5'b00001;
        good = fmt < 2'(vta_pkg::LOAD_FORMATS);
      end
      3'(vta_pkg::OP_AUX): begin
        to = 5'b00010;
        good = {1'b0, fmt} < 3'(vta_pkg::AUX_FORMATS);
      end
      3'(vta_pkg::OP_GEMM): to = 5'b00100;
      3'(vta_pkg::OP_ALU): to = 5'b01000;  // every code has its function
      3'(vta_pkg::OP_STORE): begin
        to = 5'b10000;
        good = fmt < 2'(vta_pkg::STORE_FORMATS) && writable[base];
      end
      3'(vta_pkg::OP_FINISH): to = 5'b10000;
      default: good = 1'b0;
    endcase
    if (word_excess[op] || (tokens & to) != '0) good = 1'b0;
    if ((op == 3'(vta_pkg::OP_FINISH)) != is_last) good = 1'b0;
    if (is_transfer && {1'b0, base} >= buffers) good = 1'b0;
  end
  assign trap = have && !good;
  assign send = have && good ? to & ~full : '0;

  always_ff @(posedge clk) begin
    if (in_valid) {part_beyond, part} <= {beyond, next_part};
    if (rst) begin
      {asked, sent} <= '0;
      ahead <= '0;
      beat <= '0;
    end else begin
      if (req_taken) asked <= asked + 32'(count);
      if (!running) left <= tasks;
      else if (req_taken) left <= left - 32'(count);
      if (!running) has_left <= tasks != '0;
      else if (req_taken) has_left <= left > 32'(CHUNK);
      if (in_valid) beat <= beat + 1'b1;
      if (send != '0) sent <= sent + 1'b1;
      if (!running) {unsent, is_last} <= {tasks - 1'b1, tasks == 32'd1};
      else if (send != '0) {unsent, is_last} <= {unsent - 1'b1, unsent == 32'd1};
      ahead <= ahead + (req_taken ? count : '0) - (LOG_CHUNK + 2)'(send != '0);
    end
  end

  logic unused;
  assign unused = &{1'b0, waiting};
endmodule
