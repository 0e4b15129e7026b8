// The steps of a task: four loops around a range of microcode. `busy` from the cycle after `start`;
// every `next` goes on, `last` tells that there is no other step. A task without steps has one that
// is `null_step`. Loops count what is left, and keep in registers whether that is nothing; `last` is
// one as well. As long as there is no task, and with its last step, registers take
// the fields of the task at the head of the queue: `start` only tells that they count.
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
    output logic                        no_range,  // of microcode
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

  logic [UW-1:0] ubegin, left_u, all_u;
  logic [NW-1:0] left_0, left_1, left_2, left_3, all_1, all_2, all_3;  // behind this iteration
  logic last_u, last_0, last_1, last_2, last_3, one_u, one_1, one_2, one_3;
  logic first_u, first_0, first_1, first_2, first_3;
  logic [EW-1:0] dst_0, src_0, aux_0, dst_1, src_1, aux_1, dst_2, src_2, aux_2, dst_3, src_3, aux_3;
  // Sums over loops 0 to k, for k = 0..3.
  logic [SW-1:0] d0, d1, d2, d3, s0, s1, s2, s3, a0, a1, a2, a3;
  logic [UW-1:0] u;

  logic loads;
  assign loads = !busy || last;
  assign uop = u;
  assign dst = d3;
  assign src = s3;
  assign aux = a3;
  assign at_zero = {first_u, first_3, first_2, first_1, first_0};

  logic [UW-1:0] f_ubegin, f_uend, f_left_u;
  logic [NW-1:0] f_n0, f_n1, f_n2, f_n3;
  logic [SW-1:0] f_dst, f_src, f_aux;
  assign f_ubegin = fields[0+:UW];
  assign f_uend = fields[UW+:UW];
  assign f_left_u = f_uend - f_ubegin - 1'b1;
  assign f_dst = SW'(fields[2*UW+:EW]);
  assign f_src = SW'(fields[2*UW+EW+:EW]);
  assign f_aux = SW'(fields[2*UW+2*EW+:EW]);
  assign f_n0 = fields[LOOP_AT+:NW];
  assign f_n1 = fields[LOOP_AT+LOOP_BITS+:NW];
  assign f_n2 = fields[LOOP_AT+2*LOOP_BITS+:NW];
  assign f_n3 = fields[LOOP_AT+3*LOOP_BITS+:NW];

  // Of the next step.
  logic to_u, to_0, to_1, to_2, to_3, f_null;
  assign to_u = last_u ? one_u : left_u == UW'(1);
  assign to_3 = !last_u ? last_3 : last_3 ? one_3 : left_3 == NW'(1);
  assign to_2 = !(last_u && last_3) ? last_2 : last_2 ? one_2 : left_2 == NW'(1);
  assign to_1 = !(last_u && last_3 && last_2) ? last_1 : last_1 ? one_1 : left_1 == NW'(1);
  assign to_0 = !(last_u && last_3 && last_2 && last_1) ? last_0 : left_0 == NW'(1);
  assign f_null = f_ubegin >= f_uend || f_n0 == '0 || f_n1 == '0 || f_n2 == '0 || f_n3 == '0;

  always_ff @(posedge clk) begin
    if (loads && (!busy || next)) begin
      ubegin <= f_ubegin;
      {all_u, all_1, all_2, all_3} <= {f_left_u, f_n1 - 1'b1, f_n2 - 1'b1, f_n3 - 1'b1};
      {one_u, one_1} <= {f_left_u == '0, f_n1 == NW'(1)};
      {one_2, one_3} <= {f_n2 == NW'(1), f_n3 == NW'(1)};
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
      {left_u, left_0, left_1} <= {f_left_u, f_n0 - 1'b1, f_n1 - 1'b1};
      {left_2, left_3} <= {f_n2 - 1'b1, f_n3 - 1'b1};
      {last_u, last_0, last_1} <= {f_left_u == '0, f_n0 == NW'(1), f_n1 == NW'(1)};
      {last_2, last_3} <= {f_n2 == NW'(1), f_n3 == NW'(1)};
      {first_u, first_0, first_1, first_2, first_3} <= '1;
      u <= f_ubegin;
      {d0, d1, d2, d3} <= {4{f_dst}};
      {s0, s1, s2, s3} <= {4{f_src}};
      {a0, a1, a2, a3} <= {4{f_aux}};
      null_step <= f_null;
      no_range <= f_ubegin > f_uend || f_uend > UW'(vta_pkg::UOP_DEPTH);
      last <= f_null || (f_left_u == '0 && f_n0 == NW'(1) && f_n1 == NW'(1) && f_n2 == NW'(1) &&
                         f_n3 == NW'(1));
    end else if (next) begin
      last <= to_u && to_3 && to_2 && to_1 && to_0;
      {last_u, last_0, last_1, last_2, last_3} <= {to_u, to_0, to_1, to_2, to_3};
      u <= last_u ? ubegin : u + 1'b1;
      left_u <= last_u ? all_u : left_u - 1'b1;
      first_u <= last_u;
      if (last_u) begin
        left_3 <= last_3 ? all_3 : left_3 - 1'b1;
        first_3 <= last_3;
        if (!last_3) begin
          d3 <= d3 + SW'(dst_3);
          s3 <= s3 + SW'(src_3);
          a3 <= a3 + SW'(aux_3);
        end else begin
          left_2 <= last_2 ? all_2 : left_2 - 1'b1;
          first_2 <= last_2;
          if (!last_2) begin
            {d2, d3} <= {2{d2 + SW'(dst_2)}};
            {s2, s3} <= {2{s2 + SW'(src_2)}};
            {a2, a3} <= {2{a2 + SW'(aux_2)}};
          end else begin
            left_1 <= last_1 ? all_1 : left_1 - 1'b1;
            first_1 <= last_1;
            if (!last_1) begin
              {d1, d2, d3} <= {3{d1 + SW'(dst_1)}};
              {s1, s2, s3} <= {3{s1 + SW'(src_1)}};
              {a1, a2, a3} <= {3{a1 + SW'(aux_1)}};
            end else begin
              left_0 <= left_0 - 1'b1;
              first_0 <= 1'b0;
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
