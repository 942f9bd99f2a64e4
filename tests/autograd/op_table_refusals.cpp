// The corners that rows refuse (Row::refuses): the size whose dims are 0, or kNoDims, and the error.
// Other cases are accepted: a reduction that has a value of nothing, a product over no elements, indices
// without elements.
#include <algorithm>
#include <sstream>

#include "support/op_table.h"

namespace weft::op_table {

void add_refusals(std::vector<Row>& rows) {
  const struct {
    const char* names;
    std::vector<Refusal> refuses;
  } groups[] = {
      {"sum_dim1_keep mean_dim1_keep prod_dim any_dim1_keep all_dim1_keep var_dim1_keep "
       "std_dim1_keep var_population_dim1_keep norm_dim1_keep norm_1_dim1_keep "
       "norm_3_dim1_keep cumsum cumprod softmax log_softmax log_softmax_dim1 logsumexp "
       "flatten squeeze slice split chunk unbind diagonal flip roll",
       {{kNoDims, "IndexError"}}},
      {"amax_dim1_keep amin_dim1_keep max_dim argmax min_dim argmin norm_inf_dim1_keep "
       "split_lengths",
       {{kNoDims, "IndexError"}, {5, "ShapeError"}}},
      {"sum_to multinomial", {{kNoDims, "ShapeError"}, {5, "ShapeError"}}},
      {"topk_smallest topk layer_norm_plain", {{kNoDims, "ShapeError"}, {7, "ShapeError"}}},
      {"matmul matmul_batch matmul_broadcast matmul_one_matrix matmul_shared_left "
       "matmul_vector matmul_row mm mv dot bmm outer addmm linear linear_no_bias linear_relu "
       "linear_relu_no_bias linear_gelu_tanh linear_gelu_tanh_no_bias feed_forward einsum "
       "einsum_trace layer_norm permute expand tril triu pad cat "
       "scaled_dot_product_attention scaled_dot_product_attention_causal "
       "scaled_dot_product_attention_masked scaled_dot_product_attention_biased "
       "scaled_dot_product_attention_given_bias",
       {{kNoDims, "ShapeError"}}},
      {"cross_entropy cross_entropy_with_sum cross_entropy_with_none "
       "cross_entropy_with_weight cross_entropy_with_ignore cross_entropy_with_weight_ignore "
       "cross_entropy_with_smoothing cross_entropy_with_smoothing_weight nll_loss "
       "nll_loss_with_weight linear_cross_entropy linear_cross_entropy_with_smoothing "
       "embedding",
       {{kNoDims, "ShapeError"}, {7, "IndexError"}}},
      {"cross_entropy_of_images", {{kNoDims, "ShapeError"}, {5, "IndexError"}}},
      {"index_select index_add index_add_", {{kNoDims, "IndexError"}, {3, "IndexError"}, {5, "IndexError"}}},
      {"gather take_along narrow", {{kNoDims, "IndexError"}, {5, "IndexError"}}},
      {"scatter scatter_", {{kNoDims, "IndexError"}, {5, "IndexError"}}},
      {"scatter_add scatter_add_", {{kNoDims, "IndexError"}, {3, "ShapeError"}, {5, "IndexError"}}},
      {"view reshape", {{kNoDims, "ShapeError"}, {2, "ShapeError"}, {3, "ShapeError"}, {5, "ShapeError"}}},
      {"transpose", {{kNoDims, "IndexError"}, {2, "IndexError"}}},
      {"select", {{kNoDims, "IndexError"}, {2, "IndexError"}, {3, "IndexError"}}},
      {"as_strided", {{kNoDims, "ShapeError"}, {2, "ShapeError"}, {5, "ShapeError"}}},
      {"lstm lstm_reverse", {{kNoDims, "ShapeError"}, {3, "ShapeError"}, {12, "ShapeError"}}},
      {"gru gru_reverse", {{kNoDims, "ShapeError"}, {3, "ShapeError"}, {9, "ShapeError"}}},
      {"rnn_tanh rnn_relu", {{kNoDims, "ShapeError"}, {3, "ShapeError"}}},
      {"mul_through_a_view_", {{kNoDims, "IndexError"}, {3, "IndexError"}}},
      {"max min norm_inf", {{2, "ShapeError"}, {3, "ShapeError"}, {5, "ShapeError"}}},
      {"amax_dims amin_dims norm_inf_dims", {{2, "ShapeError"}, {3, "ShapeError"}}},
      {"normalize argsort repeat_interleave", {{kNoDims, "IndexError"}}},
      {"median", {{3, "ShapeError"}, {5, "ShapeError"}}},
      {"median_dim", {{kNoDims, "IndexError"}, {6, "ShapeError"}}},
      {"argmax_all argmin_all", {{2, "ShapeError"}, {3, "ShapeError"}, {5, "ShapeError"}}},
      {"index_positions", {{kNoDims, "IndexError"}, {4, "IndexError"}, {5, "IndexError"}}},
      {"index_mask", {{kNoDims, "IndexError"}, {4, "IndexError"}}},
      {"index_view", {{kNoDims, "IndexError"}, {3, "IndexError"}, {4, "IndexError"}}},
      {"index_put index_put_accumulate",
       {{kNoDims, "IndexError"}, {3, "IndexError"}, {4, "IndexError"}, {5, "IndexError"}}},
      {"masked_scatter masked_scatter_", {{kNoDims, "IndexError"}, {4, "IndexError"}, {13, "ShapeError"}}},
      {"index_put_through_a_view_",
       {{kNoDims, "IndexError"}, {2, "ShapeError"}, {3, "IndexError"}, {5, "IndexError"}}},
      {"bincount diag_of_matrix", {{kNoDims, "ShapeError"}}},
      {"scatter_reduce_sum scatter_reduce_sum_of_src scatter_reduce_prod "
       "scatter_reduce_prod_of_src scatter_reduce_mean scatter_reduce_mean_of_src "
       "scatter_reduce_amax scatter_reduce_amax_of_src scatter_reduce_amin "
       "scatter_reduce_amin_of_src",
       {{kNoDims, "IndexError"}, {3, "ShapeError"}, {5, "IndexError"}}},
  };
  for (const auto& group : groups) {
    std::istringstream names(group.names);
    for (std::string name; names >> name;) {
      const auto row = std::find_if(rows.begin(), rows.end(), [&](const Row& r) { return r.name == name; });
      if (row == rows.end()) throw ValueError("the op table has no row \"" + name + "\"");
      row->refuses = group.refuses;
    }
  }
}

}  // namespace weft::op_table
