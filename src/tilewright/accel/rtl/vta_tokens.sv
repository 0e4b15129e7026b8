// Counters of tokens between every two queues. Bit `from * 5 + to`, of `pops` `to * 5 + from`.
//
// Which units begin is known late in a cycle: everything else is decided before it.
module vta_tokens (
    input  logic        clk,
    input  logic        rst,
    input  logic [24:0] give,
    input  logic [24:0] pops,
    input  logic [4:0]  begins,
    output logic [24:0] there,
    output logic        overflow
);
  // By the unit that takes: a full counter is given to, which it takes from or not if it begins.
  logic [24:0] given, given_only;
  logic [4:0] overflows;
  assign overflow = overflows != '0;
  genvar from, to;
  generate
    for (to = 0; to < 5; to = to + 1) begin : g_to
      assign overflows[to] = begins[to] ? given_only[to*5+:5] != '0 : given[to*5+:5] != '0;
      for (from = 0; from < 5; from = from + 1) begin : g_from
        if (from == to) begin : g_none
          assign there[from*5+to] = 1'b0;
          assign given[to*5+from] = 1'b0;
          assign given_only[to*5+from] = 1'b0;
        end else begin : g_counter
          logic [vta_pkg::TOKEN_BITS-1:0] count, more, less;
          logic gives, pop, is_there;  // the last: `count` is not 0
          assign gives = give[from*5+to];
          assign pop = pops[to*5+from];
          assign there[from*5+to] = is_there;
          assign given[to*5+from] = gives && count == '1;
          assign given_only[to*5+from] = gives && !pop && count == '1;
          assign more = count + 1'b1;
          assign less = count - 1'b1;
          always_ff @(posedge clk) begin
            if (rst) begin
              count <= '0;
              is_there <= 1'b0;
            end else if (begins[to] && pop) begin
              if (!gives) count <= less;
              if (!gives) is_there <= less != '0;
            end else if (gives) begin
              count <= more;
              is_there <= 1'b1;
            end
          end
        end
      end
    end
  endgenerate

  logic unused;
  assign unused = &{1'b0, give, pops};
endmodule
