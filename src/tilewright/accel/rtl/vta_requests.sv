// The requests of a transfer: rows, cut into bursts. `valid` from the cycle after `start`; every
// `next` goes on. Addresses are bytes from the beginning of the buffer.
//
// The request that is offered is in registers, and the one behind it is known: the first of them
// comes from the task's fields, all others from the state.
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
    input  logic [vta_pkg::RUN_BITS-1:0] run_bytes,
    input  logic [23:0]   xstride,
    input  logic [23:0]   ystride,
    input  logic [23:0]   zstride,
    input  logic [1:0]    format,
    output logic          valid,
    output logic          last,
    output logic [AW-1:0] address,
    output logic [AW-1:0] stop,  // behind the last byte
    output logic [7:0]    beats,  // less one
    output logic [15:0]   words
);
  localparam int NW = vta_pkg::EXTENT_BITS;
  localparam int LOG_BUS = vta_pkg::LOG_BUS_BYTES;
  localparam int LOG_BURST = vta_pkg::LOG_BUS_BYTES + vta_pkg::LOG_BURST_BEATS;
  localparam int LEFT = vta_pkg::RUN_BITS;
  localparam int BURST = LOG_BURST + 1;

  function automatic logic [AW-1:0] bytes_of(input logic [AW-1:0] entries, input logic [1:0] kind);
    case (kind)
      2'd0: bytes_of = entries << LOG_0;
      2'd1: bytes_of = entries << LOG_1;
      2'd2: bytes_of = entries << LOG_2;
      default: bytes_of = entries << LOG_3;
    endcase
  endfunction

  // What a task keeps.
  logic [NW-1:0] nx, ny;
  logic [AW-1:0] dx, dy, dz;
  logic [LEFT-1:0] run;
  logic [1:0] kind;
  logic one_run;
  // Where the request behind the one that is offered begins, with entry, row and plane around it,
  // what is left of its run, and of entries, rows and planes with this one.
  logic [AW-1:0] at, column, row, plane;
  logic [LEFT-1:0] left;
  logic [NW-1:0] cx, cy, cz;

  // The same of the next request to be offered: of a task that begins, unless one is on its way.
  logic [NW-1:0] t_nx, t_ny, t_cx, t_cy, t_cz;
  logic [AW-1:0] t_dx, t_dy, t_dz, t_at, t_column, t_row, t_plane;
  logic [LEFT-1:0] t_run, t_left;
  logic t_one_run;
  assign t_one_run = valid ? one_run : is_run;
  assign t_run = valid ? run : run_bytes;
  assign t_left = valid ? left : run_bytes;
  assign {t_nx, t_ny} = valid ? {nx, ny} : {x, y};
  assign {t_cx, t_cy, t_cz} = valid ? {cx, cy, cz} : {x, y, z};
  assign t_dx = valid ? dx : bytes_of(AW'(xstride), format);
  assign t_dy = valid ? dy : bytes_of(AW'(ystride), format);
  assign t_dz = valid ? dz : bytes_of(AW'(zstride), format);
  assign t_at = valid ? at : AW'(offset);
  assign t_column = valid ? column : AW'(offset);
  assign t_row = valid ? row : AW'(offset);
  assign t_plane = valid ? plane : AW'(offset);

  logic [BURST-1:0] room, t_bytes, bytes;  // up to the boundary; of this burst; of the one offered
  logic [BURST-1:0] t_span, span;  // from the first beat to the last byte
  logic ends, last_x, last_y, last_z;
  assign room = BURST'(1 << LOG_BURST) - BURST'(t_at[LOG_BURST-1:0]);
  assign ends = t_left <= LEFT'(room);
  assign t_bytes = ends ? t_left[BURST-1:0] : room;
  assign t_span = t_bytes + BURST'(t_at[LOG_BUS-1:0]) - 1'b1;
  assign beats = 8'(span >> LOG_BUS);
  logic [15:0] all_beats, all_bytes;
  assign all_beats = 16'(beats) + 1'b1;
  assign all_bytes = 16'(bytes);
  always_comb begin
    case (kind)
      2'd0: words = LOG_0 >= LOG_BUS ? all_beats : all_bytes >> LOG_0;
      2'd1: words = LOG_1 >= LOG_BUS ? all_beats : all_bytes >> LOG_1;
      2'd2: words = LOG_2 >= LOG_BUS ? all_beats : all_bytes >> LOG_2;
      default: words = LOG_3 >= LOG_BUS ? all_beats : all_bytes >> LOG_3;
    endcase
  end
  assign last_x = t_one_run || t_cx == NW'(1);
  assign last_y = t_cy == NW'(1);
  assign last_z = t_cz == NW'(1);

  logic [AW-1:0] next_column, next_row, next_plane;
  assign next_column = t_column + t_dx;
  assign next_row = t_row + t_dy;
  assign next_plane = t_plane + t_dz;

  always_ff @(posedge clk) begin
    if (start || next) begin
      {nx, ny} <= {t_nx, t_ny};
      {dx, dy, dz} <= {t_dx, t_dy, t_dz};
      run <= t_run;
      if (!valid) kind <= format;
      one_run <= t_one_run;
      last <= ends && last_x && last_y && last_z;
      address <= t_at;
      stop <= t_at + AW'(t_bytes);
      bytes <= t_bytes;
      span <= t_span;
      left <= ends ? t_run : t_left - LEFT'(room);
      if (!ends) begin
        at <= {t_at[AW-1:LOG_BURST] + 1'b1, {LOG_BURST{1'b0}}};
        {column, row, plane} <= {t_column, t_row, t_plane};
        {cx, cy, cz} <= {t_cx, t_cy, t_cz};
      end else if (!last_x) begin
        at <= next_column;
        {column, row, plane} <= {next_column, t_row, t_plane};
        {cx, cy, cz} <= {t_cx - 1'b1, t_cy, t_cz};
      end else if (!last_y) begin
        at <= next_row;
        {column, row, plane} <= {next_row, next_row, t_plane};
        {cx, cy, cz} <= {t_nx, t_cy - 1'b1, t_cz};
      end else begin
        at <= next_plane;
        {column, row, plane} <= {next_plane, next_plane, next_plane};
        {cx, cy, cz} <= {t_nx, t_ny, t_cz - 1'b1};
      end
    end
    if (rst) valid <= 1'b0;
    else if (start) valid <= x != '0 && y != '0 && z != '0;
    else if (next && last) valid <= 1'b0;
  end
endmodule
