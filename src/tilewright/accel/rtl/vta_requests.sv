// The requests of a transfer: rows, cut into bursts. `valid` from the cycle after `start`; every
// `next` goes on. Addresses are bytes from the beginning of the buffer.
//
// The state is the request that is offered. Where the next entry, row and plane begin, and whether
// this request is the last of its run, entry of its row, row and plane, is in registers: what comes
// next is a choice and one addition away. As long as there is no task the registers follow the head
// of the queue, so that `start` has nothing to do but to tell that they count.
module vta_requests #(
    parameter int AW = 50,
    // of an entry in DRAM, in bytes, by format: its logarithm
    parameter int LOG_0 = 0,
    parameter int LOG_1 = 0,
    parameter int LOG_2 = 0,
    parameter int LOG_3 = 0
) (
    input  logic          clk,
    input  logic          rst,
    input  logic          start,
    input  logic          next,
    input  logic [31:0]   offset,
    input  logic [vta_pkg::EXTENT_BITS-1:0] x,
    input  logic [vta_pkg::EXTENT_BITS-1:0] y,
    input  logic [vta_pkg::EXTENT_BITS-1:0] z,
    input  logic          is_run,  // xstride is 1: a row is one run of bytes, not an entry
    input  logic [vta_pkg::RUN_BITS-1:0] run_last,  // bytes of a run, less one
    input  logic [23:0]   xstride,
    input  logic [23:0]   ystride,
    input  logic [23:0]   zstride,
    input  logic [1:0]    format,
    output logic          valid,
    output logic          last,
    output logic [AW-1:0] address,
    output logic [AW-1:0] last_byte,
    output logic [7:0]    beats,  // less one
    output logic [vta_pkg::BURST_WORD_BITS-1:0] words  // less one
);
  localparam int NW = vta_pkg::EXTENT_BITS;
  localparam int LOG_BUS = vta_pkg::LOG_BUS_BYTES;
  localparam int LOG_BURST = vta_pkg::LOG_BUS_BYTES + vta_pkg::LOG_BURST_BEATS;
  localparam int RB = vta_pkg::RUN_BITS;
  localparam int BW = vta_pkg::BURST_WORD_BITS;
  localparam int MW = RB + 1 - LOG_BURST;

  function automatic logic [AW-1:0] bytes_of(input logic [AW-1:0] entries, input logic [1:0] kind);
    case (kind)
      2'd0: bytes_of = entries << LOG_0;
      2'd1: bytes_of = entries << LOG_1;
      2'd2: bytes_of = entries << LOG_2;
      default: bytes_of = entries << LOG_3;
    endcase
  endfunction

  // What a task keeps.
  logic [NW-1:0] all_x, all_y;  // less one
  logic only_x, only_y;
  logic [AW-1:0] dx, dy, dz;
  logic [RB-1:0] run;
  logic [1:0] kind;
  // Where the next entry, row and plane begin, and how many are left behind this one.
  logic [AW-1:0] column, row, plane;
  logic [NW-1:0] left_x, left_y, left_z;
  logic last_x, last_y, last_z;
  // Bursts of this run behind this one, and the place of its last byte in the last of them.
  logic [MW-1:0] left_run;
  logic [LOG_BURST-1:0] run_end;
  logic ends;

  // Where a run begins: of a task, unless one is on its way.
  logic next_x, next_y;
  logic [AW-1:0] t_dx, t_dy, t_dz, t_at, t_row, t_plane;
  logic [RB-1:0] t_run;
  logic [RB:0] reach;  // of the last byte of the run, from the boundary in front of its first
  assign next_x = valid && !last_x;
  assign next_y = valid && last_x && !last_y;
  assign t_dx = valid ? dx : bytes_of(AW'(xstride), format);
  assign t_dy = valid ? dy : bytes_of(AW'(ystride), format);
  assign t_dz = valid ? dz : bytes_of(AW'(zstride), format);
  assign t_run = valid ? run : run_last;
  assign t_plane = valid ? plane : AW'(offset);
  assign t_row = next_y ? row : t_plane;
  assign t_at = next_x ? column : t_row;
  assign reach = {1'b0, t_run} + (RB + 1)'(t_at[LOG_BURST-1:0]);

  always_ff @(posedge clk) begin
    if (!valid) begin
      {all_x, all_y} <= {x - 1'b1, y - 1'b1};
      {only_x, only_y} <= {is_run || x == NW'(1), y == NW'(1)};
      {dx, dy, dz} <= {t_dx, t_dy, t_dz};
      run <= run_last;
      kind <= format;
    end
    if (valid && next && !ends) begin
      address <= {address[AW-1:LOG_BURST] + 1'b1, {LOG_BURST{1'b0}}};
      left_run <= left_run - 1'b1;
      ends <= left_run == MW'(1);
    end
    if (!valid || (next && ends)) begin
      address <= t_at;
      {left_run, run_end} <= reach;
      ends <= reach[RB:LOG_BURST] == '0;
      column <= t_at + t_dx;
      if (!next_x) row <= t_row + t_dy;
      if (!next_x && !next_y) plane <= t_plane + t_dz;
      left_x <= next_x ? left_x - 1'b1 : valid ? all_x : x - 1'b1;
      last_x <= next_x ? left_x == NW'(1) : valid ? only_x : is_run || x == NW'(1);
      if (!next_x) begin
        left_y <= next_y ? left_y - 1'b1 : valid ? all_y : y - 1'b1;
        last_y <= next_y ? left_y == NW'(1) : valid ? only_y : y == NW'(1);
      end
      if (!next_x && !next_y) begin
        left_z <= valid ? left_z - 1'b1 : z - 1'b1;
        last_z <= valid ? left_z == NW'(1) : z == NW'(1);
      end
    end
    if (rst) valid <= 1'b0;
    else if (start) valid <= x != '0 && y != '0 && z != '0;
    else if (next && last) valid <= 1'b0;
  end

  logic [LOG_BURST-1:0] burst_end;
  logic [LOG_BURST-1:0] bytes;  // less one
  assign burst_end = ends ? run_end : '1;
  assign last_byte = {address[AW-1:LOG_BURST], burst_end};
  assign last = ends && last_x && last_y && last_z;
  assign beats = 8'(burst_end[LOG_BURST-1:LOG_BUS]) - 8'(address[LOG_BURST-1:LOG_BUS]);
  assign bytes = burst_end - address[LOG_BURST-1:0];
  always_comb begin
    case (kind)
      2'd0: words = LOG_0 >= LOG_BUS ? BW'(beats) : BW'(bytes >> LOG_0);
      2'd1: words = LOG_1 >= LOG_BUS ? BW'(beats) : BW'(bytes >> LOG_1);
      2'd2: words = LOG_2 >= LOG_BUS ? BW'(beats) : BW'(bytes >> LOG_2);
      default: words = LOG_3 >= LOG_BUS ? BW'(beats) : BW'(bytes >> LOG_3);
    endcase
  end
endmodule
