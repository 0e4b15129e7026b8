// The requests of a transfer: rows, cut into bursts. `valid` from the cycle after `start`; every
// `next` goes on. Addresses are bytes from the beginning of the buffer.
module vta_requests #(
    parameter int AW = 50
) (
    input  logic          clk,
    input  logic          rst,
    input  logic          start,
    input  logic          next,
    input  logic [31:0]   offset,
    input  logic [vta_pkg::EXTENT_BITS-1:0] x,
    input  logic [vta_pkg::EXTENT_BITS-1:0] y,
    input  logic [vta_pkg::EXTENT_BITS-1:0] z,
    input  logic [23:0]   xstride,
    input  logic [23:0]   ystride,
    input  logic [23:0]   zstride,
    input  logic [4:0]    log_width,  // of an entry in DRAM, in bytes
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

  logic [NW-1:0] nx, ny, nz, ix, iy, iz;
  logic [AW-1:0] dx, dy, dz, row, plane, run, finish, boundary;
  logic [4:0] lw;
  logic one_run, last_x, last_y, last_z, ends;
  logic [AW-1:0] first_word, last_word, bytes;

  assign boundary = {address[AW-1:LOG_BURST] + 1'b1, {LOG_BURST{1'b0}}};
  assign ends = finish <= boundary;
  assign stop = ends ? finish : boundary;
  assign first_word = address >> LOG_BUS;
  assign last_word = (stop - 1'b1) >> LOG_BUS;
  assign bytes = stop - address;
  assign beats = 8'(last_word - first_word);
  assign words = lw >= 5'(LOG_BUS) ? 16'(last_word - first_word) + 1'b1 : 16'(bytes >> lw);
  assign last_x = one_run || ix + 1'b1 == nx;
  assign last_y = iy + 1'b1 == ny;
  assign last_z = iz + 1'b1 == nz;
  assign last = ends && last_x && last_y && last_z;

  always_ff @(posedge clk) begin
    if (start) begin
      nx <= x;
      ny <= y;
      nz <= z;
      {ix, iy, iz} <= '0;
      lw <= log_width;
      one_run <= xstride == 24'd1;
      dx <= AW'(xstride) << log_width;
      dy <= AW'(ystride) << log_width;
      dz <= AW'(zstride) << log_width;
      run <= (xstride == 24'd1 ? AW'(x) : AW'(1)) << log_width;
      address <= AW'(offset);
      row <= AW'(offset);
      plane <= AW'(offset);
      finish <= AW'(offset) + ((xstride == 24'd1 ? AW'(x) : AW'(1)) << log_width);
    end else if (next) begin
      if (!ends) begin
        address <= stop;
      end else if (!last_x) begin
        ix <= ix + 1'b1;
        address <= finish - run + dx;
        finish <= finish + dx;
      end else begin
        ix <= '0;
        if (!last_y) begin
          iy <= iy + 1'b1;
          row <= row + dy;
          address <= row + dy;
          finish <= row + dy + run;
        end else begin
          iy <= '0;
          iz <= iz + 1'b1;
          plane <= plane + dz;
          row <= plane + dz;
          address <= plane + dz;
          finish <= plane + dz + run;
        end
      end
    end
    if (rst) valid <= 1'b0;
    else if (start) valid <= x != '0 && y != '0 && z != '0;
    else if (next && last) valid <= 1'b0;
  end
endmodule
