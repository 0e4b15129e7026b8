// Counters of tokens between every two queues. Bit `from * 5 + to`.
module vta_tokens (
    input  logic        clk,
    input  logic        rst,
    input  logic [24:0] give,
    input  logic [24:0] take,
    output logic [24:0] there,
    output logic        overflow
);
  logic [24:0] overflows;
  assign overflow = overflows != '0;
  genvar pair;
  generate
    for (pair = 0; pair < 25; pair = pair + 1) begin : g_pair
      if (pair / 5 == pair % 5) begin : g_none
        assign there[pair] = 1'b0;
        assign overflows[pair] = 1'b0;
      end else begin : g_counter
        logic [vta_pkg::TOKEN_BITS-1:0] count;
        logic is_there;  // as long as `count` is not 0
        assign there[pair] = is_there;
        assign overflows[pair] = give[pair] && !take[pair] && count == '1;
        always_ff @(posedge clk) begin
          if (rst) begin
            count <= '0;
            is_there <= 1'b0;
          end else if (give[pair] && !take[pair]) begin
            count <= count + 1'b1;
            is_there <= 1'b1;
          end else if (take[pair] && !give[pair]) begin
            count <= count - 1'b1;
            is_there <= count != vta_pkg::TOKEN_BITS'(1);
          end
        end
      end
    end
  endgenerate

  logic unused;
  assign unused = &{1'b0, give, take};
endmodule
