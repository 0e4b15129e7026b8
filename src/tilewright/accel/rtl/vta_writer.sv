// Writes the entries of loads in order: padding at once, data as the bus brings them. Tasks wait in
// a queue while their requests are on the way.
module vta_writer (
    input  logic        clk,
    input  logic        rst,
    input  logic        halt,
    // a task begins
    input  logic        push,
    input  logic [vta_pkg::LOAD_BITS-1:0] task_word,
    output logic        full,
    // words from the bus
    input  logic        in_valid,
    output logic        in_ready,
    // entries to a scratchpad
    output logic        write,
    output logic        is_pad,
    output logic        is_last_word,
    output logic        begins_row,
    output logic [1:0]  fmt,
    output logic [vta_pkg::EXTENT_BITS:0] place,
    output logic [vta_pkg::ENTRY_WORD_BITS-1:0] word,
    output logic [31:0] value,
    input  logic [vta_pkg::ENTRY_WORD_BITS-1:0] last_word,  // of an entry of `fmt`
    // it ends in the next cycle
    output logic        done,
    output logic [4:0]  done_push
);
  localparam int NW = vta_pkg::EXTENT_BITS;
  localparam int EW = vta_pkg::ENTRY_BITS;
  localparam int CW = NW + 1;  // extents with padding
  localparam int KEPT = 5 + 2 + EW + 3 * NW + 4 * 6 + 32;

  logic [KEPT-1:0] in, head;
  logic head_valid, take;
  logic [vta_pkg::LOG_AHEAD:0] count;
  assign in = {
    task_word[vta_pkg::LOAD_PUSH_AT+:5],
    task_word[vta_pkg::LOAD_FMT_AT+:2],
    task_word[vta_pkg::LOAD_SRAM_AT+:EW],
    task_word[vta_pkg::LOAD_X_AT+:NW],
    task_word[vta_pkg::LOAD_Y_AT+:NW],
    task_word[vta_pkg::LOAD_Z_AT+:NW],
    task_word[vta_pkg::LOAD_X0_AT+:6],
    task_word[vta_pkg::LOAD_X1_AT+:6],
    task_word[vta_pkg::LOAD_Y0_AT+:6],
    task_word[vta_pkg::LOAD_Y1_AT+:6],
    task_word[vta_pkg::LOAD_VALUE_AT+:32]
  };
  vta_fifo #(
      .BITS(KEPT),
      .LOG_DEPTH(vta_pkg::LOG_AHEAD)
  ) tasks (
      .clk(clk), .rst(rst), .push(push), .in(in), .pop(take), .head(head), .valid(head_valid),
      .count(count)
  );
  assign full = count[vta_pkg::LOG_AHEAD];

  logic active, is_empty, on_data, entry_done, last_x, last_y, last_z;
  // Whether row and column have data, and for the first of each; whether there is but one.
  logic in_x, in_y, first_in_x, first_in_y, only_x, only_y;
  logic [4:0] pushes;
  logic [NW-1:0] pz, z_last;
  // Where a row or plane is, and the places before its data begin, before they end, before its last.
  logic [CW-1:0] px, py, x_begin, x_end, x_last, y_begin, y_end, y_last;
  logic [EW-1:0] sram;
  logic [4:0] h_push;
  logic [1:0] h_fmt;
  logic [NW-1:0] h_x, h_y, h_z;
  logic [5:0] h_x0, h_x1, h_y0, h_y1;
  logic [31:0] h_value;
  assign {h_push, h_fmt, sram, h_x, h_y, h_z, h_x0, h_x1, h_y0, h_y1, h_value} = head;
  assign take = !active && head_valid && !halt;
  logic [CW-1:0] t_x, t_y;
  assign t_x = CW'(h_x0) + CW'(h_x);
  assign t_y = CW'(h_y0) + CW'(h_y);

  assign last_z = pz == z_last;
  assign is_pad = !in_x || !in_y;
  assign begins_row = px == '0;
  assign on_data = active && !is_empty && !is_pad;
  assign in_ready = on_data && !halt;
  assign write = active && !is_empty && !halt && (is_pad || in_valid);
  assign is_last_word = is_pad || word == last_word;
  assign entry_done = write && is_last_word;

  always_ff @(posedge clk) begin
    done <= 1'b0;
    if (take) begin
      pushes <= h_push;
      fmt <= h_fmt;
      place <= (NW + 1)'(sram);
      x_begin <= CW'(h_x0) - 1'b1;
      x_end <= t_x - 1'b1;
      x_last <= t_x + CW'(h_x1) - CW'(2);
      y_begin <= CW'(h_y0) - 1'b1;
      y_end <= t_y - 1'b1;
      y_last <= t_y + CW'(h_y1) - CW'(2);
      {in_x, first_in_x} <= {2{h_x0 == '0 && h_x != '0}};
      {in_y, first_in_y} <= {2{h_y0 == '0 && h_y != '0}};
      {last_x, only_x} <= {2{t_x + CW'(h_x1) == CW'(1)}};
      {last_y, only_y} <= {2{t_y + CW'(h_y1) == CW'(1)}};
      z_last <= h_z - 1'b1;
      value <= h_value;
      {px, py, pz, word} <= '0;
      is_empty <= h_z == '0 || {h_x, h_x0, h_x1} == '0 || {h_y, h_y0, h_y1} == '0;
    end else if (write) begin
      word <= is_last_word ? '0 : word + 1'b1;
      if (is_last_word) begin
        place <= place + 1'b1;
        px <= last_x ? '0 : px + 1'b1;
        in_x <= last_x ? first_in_x : px != x_end && (px == x_begin || in_x);
        last_x <= last_x ? only_x : px == x_last;
        if (last_x) begin
          py <= last_y ? '0 : py + 1'b1;
          in_y <= last_y ? first_in_y : py != y_end && (py == y_begin || in_y);
          last_y <= last_y ? only_y : py == y_last;
        end
        if (last_x && last_y) pz <= pz + 1'b1;
      end
    end
    done_push <= pushes;
    if (rst) begin
      active <= 1'b0;
    end else if (take) begin
      active <= 1'b1;
    end else if (active && !halt && (is_empty || (entry_done && last_x && last_y && last_z))) begin
      active <= 1'b0;
      done <= 1'b1;
    end
  end

  logic unused;
  assign unused = &{1'b0, task_word};
endmodule
