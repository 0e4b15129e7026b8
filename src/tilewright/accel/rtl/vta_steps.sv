// The steps of a task: four loops around a range of microcode. `busy` from the cycle after `start`;
// every `next` goes on, `last` tells that there is no other step. A task without steps has one that
// is `null_step`.
module vta_steps #(
    parameter int SW = 28
) (
    input  logic                        clk,
    input  logic                        rst,
    input  logic                        start,
    input  logic                        next,
    input  logic [vta_pkg::STEPS_BITS-1:0] fields,
    output logic                        busy,
    output logic                        last,
    output logic                        null_step,
    output logic [vta_pkg::UOP_BITS-1:0] uop,
    output logic [SW-1:0]               dst,
    output logic [SW-1:0]               src,
    output logic [SW-1:0]               aux,
    output logic [4:0]                  at_zero
);
  localparam int EW = vta_pkg::ENTRY_BITS;
  localparam int NW = vta_pkg::EXTENT_BITS;
  localparam int UW = vta_pkg::UOP_BITS;
  localparam int LOOP_BITS = NW + 3 * EW;
  localparam int LOOP_AT = 2 * UW + 3 * EW;  // behind ubegin, uend, dst0, src0, aux0

  logic [UW-1:0] ubegin, uend;
  logic [NW-1:0] n0, n1, n2, n3, i0, i1, i2, i3;
  logic [EW-1:0] dst_0, src_0, aux_0, dst_1, src_1, aux_1, dst_2, src_2, aux_2, dst_3, src_3, aux_3;
  // Sums over loops 0 to k, for k = 0..3.
  logic [SW-1:0] d0, d1, d2, d3, s0, s1, s2, s3, a0, a1, a2, a3;
  logic [UW-1:0] u;
  logic last_u, last_0, last_1, last_2, last_3;

  assign last_u = u + 1'b1 >= uend;
  assign last_0 = i0 + 1'b1 == n0;
  assign last_1 = i1 + 1'b1 == n1;
  assign last_2 = i2 + 1'b1 == n2;
  assign last_3 = i3 + 1'b1 == n3;
  assign last = null_step || (last_u && last_3 && last_2 && last_1 && last_0);
  assign uop = u;
  assign dst = d3;
  assign src = s3;
  assign aux = a3;
  assign at_zero = {u == ubegin, i3 == '0, i2 == '0, i1 == '0, i0 == '0};

  logic [UW-1:0] f_ubegin, f_uend;
  logic [NW-1:0] f_n0, f_n1, f_n2, f_n3;
  logic [SW-1:0] f_dst, f_src, f_aux;
  assign f_ubegin = fields[0+:UW];
  assign f_uend = fields[UW+:UW];
  assign f_dst = SW'(fields[2*UW+:EW]);
  assign f_src = SW'(fields[2*UW+EW+:EW]);
  assign f_aux = SW'(fields[2*UW+2*EW+:EW]);
  assign f_n0 = fields[LOOP_AT+:NW];
  assign f_n1 = fields[LOOP_AT+LOOP_BITS+:NW];
  assign f_n2 = fields[LOOP_AT+2*LOOP_BITS+:NW];
  assign f_n3 = fields[LOOP_AT+3*LOOP_BITS+:NW];

  always_ff @(posedge clk) begin
    if (start) begin
      ubegin <= f_ubegin;
      uend <= f_uend;
      n0 <= f_n0;
      n1 <= f_n1;
      n2 <= f_n2;
      n3 <= f_n3;
      dst_0 <= fields[LOOP_AT+NW+:EW];
      src_0 <= fields[LOOP_AT+NW+EW+:EW];
      aux_0 <= fields[LOOP_AT+NW+2*EW+:EW];
      dst_1 <= fields[LOOP_AT+LOOP_BITS+NW+:EW];
      src_1 <= fields[LOOP_AT+LOOP_BITS+NW+EW+:EW];
      aux_1 <= fields[LOOP_AT+LOOP_BITS+NW+2*EW+:EW];
      dst_2 <= fields[LOOP_AT+2*LOOP_BITS+NW+:EW];
      src_2 <= fields[LOOP_AT+2*LOOP_BITS+NW+EW+:EW];
      aux_2 <= fields[LOOP_AT+2*LOOP_BITS+NW+2*EW+:EW];
      dst_3 <= fields[LOOP_AT+3*LOOP_BITS+NW+:EW];
      src_3 <= fields[LOOP_AT+3*LOOP_BITS+NW+EW+:EW];
      aux_3 <= fields[LOOP_AT+3*LOOP_BITS+NW+2*EW+:EW];
      {i0, i1, i2, i3} <= '0;
      u <= f_ubegin;
      {d0, d1, d2, d3} <= {4{f_dst}};
      {s0, s1, s2, s3} <= {4{f_src}};
      {a0, a1, a2, a3} <= {4{f_aux}};
      null_step <= f_ubegin >= f_uend || f_n0 == '0 || f_n1 == '0 || f_n2 == '0 || f_n3 == '0;
    end else if (next) begin
      u <= last_u ? ubegin : u + 1'b1;
      if (last_u) begin
        i3 <= last_3 ? '0 : i3 + 1'b1;
        if (!last_3) begin
          d3 <= d3 + SW'(dst_3);
          s3 <= s3 + SW'(src_3);
          a3 <= a3 + SW'(aux_3);
        end else begin
          i2 <= last_2 ? '0 : i2 + 1'b1;
          if (!last_2) begin
            {d2, d3} <= {2{d2 + SW'(dst_2)}};
            {s2, s3} <= {2{s2 + SW'(src_2)}};
            {a2, a3} <= {2{a2 + SW'(aux_2)}};
          end else begin
            i1 <= last_1 ? '0 : i1 + 1'b1;
            if (!last_1) begin
              {d1, d2, d3} <= {3{d1 + SW'(dst_1)}};
              {s1, s2, s3} <= {3{s1 + SW'(src_1)}};
              {a1, a2, a3} <= {3{a1 + SW'(aux_1)}};
            end else begin
              i0 <= i0 + 1'b1;
              {d0, d1, d2, d3} <= {4{d0 + SW'(dst_0)}};
              {s0, s1, s2, s3} <= {4{s0 + SW'(src_0)}};
              {a0, a1, a2, a3} <= {4{a0 + SW'(aux_0)}};
            end
          end
        end
      end
    end
    if (rst) busy <= 1'b0;
    else if (start) busy <= 1'b1;
    else if (next && last) busy <= 1'b0;
  end
endmodule
