// The operations that cuDNN recognises as attention and runs in a fused kernel, in the form that its guide
// describes. q k^T, its factor, the mask and the softmax are tensors without memory. k is given as its
// transpose, by strides, and so is v in a backward. The form of a backward that ends with the product for dq
// repeats its bits; cuDNN keeps ds in its workspace for that, L S halves per head. Empty in a build without
// cuDNN.
#if defined(WEFT_WITH_CUDNN)

#include <weft/kernels/cuda/toolkit/attention_graph.h>

#include <utility>

namespace weft::cuda::cudnn {

namespace {

using Sizes = Graph::Sizes;
using Tensor = Graph::Tensor;

Sizes turned(Sizes s) {
  std::swap(s[2], s[3]);
  return s;
}

/// The parts of both graphs.
struct Parts {
  const AttentionSpec& spec;
  Graph& graph;
  Sizes of_queries{spec.batch, spec.heads, spec.queries, spec.width},
      of_keys{spec.batch, spec.heads, spec.keys, spec.width},
      of_values{spec.batch, spec.heads, spec.keys, spec.values},
      results{spec.batch, spec.heads, spec.queries, spec.values},
      products{spec.batch, spec.heads, spec.queries, spec.keys},
      rows{spec.batch, spec.heads, spec.queries, 1};

  Tensor memory(int64_t id, const Sizes& sizes, const Sizes& strides) {
    return graph.memory(id, spec.type, sizes, strides);
  }
  Tensor number(int64_t id) { return graph.number(id, CUDNN_DATA_FLOAT); }
  Tensor between(const Sizes& sizes) { return graph.between(CUDNN_DATA_FLOAT, sizes); }
  Tensor multiply(const Tensor& a, const Tensor& b) {
    const Tensor c = between(products);
    graph.multiply(a, b, c);
    return c;
  }
  Tensor pointwise(cudnnPointwiseMode_t mode, const Tensor& x, const Tensor& b = {}) {
    const Tensor y = between(x.sizes);
    graph.pointwise(mode, x, b, y);
    return y;
  }
  Tensor reduce(cudnnReduceTensorOp_t fold, const Tensor& x) {
    const Tensor y = between(rows);
    graph.reduce(fold, x, y);
    return y;
  }
  /// x where the key takes part, else -infinity.
  Tensor masked(const Tensor& x) {
    if (!spec.causal) return x;
    const Tensor row = graph.between(CUDNN_DATA_INT32, products),
                 column = graph.between(CUDNN_DATA_INT32, products),
                 taken = graph.between(CUDNN_DATA_BOOLEAN, products), y = between(products);
    graph.index(2, x, row);
    graph.index(3, x, column);
    graph.pointwise(CUDNN_POINTWISE_CMP_GE, row, column, taken, CUDNN_DATA_BOOLEAN);
    graph.pointwise(CUDNN_POINTWISE_BINARY_SELECT, x, number(kAttentionNone), y, CUDNN_DATA_FLOAT, taken);
    return y;
  }
  /// x, rounded to the type of q, for a product.
  Tensor rounded_turned(const Tensor& x) {
    const Sizes sizes = turned(products);
    const Tensor y = graph.between(spec.type, sizes, turned(dense(products)));
    graph.reshape(x, y);
    return y;
  }
};

void forward(Parts& p) {
  const AttentionSpec& spec = p.spec;
  Graph& graph = p.graph;
  const Tensor q = p.memory(kAttentionQ, p.of_queries, spec.q),
               k = p.memory(kAttentionK, turned(p.of_keys), turned(spec.k)),
               v = p.memory(kAttentionV, p.of_values, spec.v),
               y = p.memory(kAttentionY, p.results, dense(p.results));
  const Tensor s = p.masked(p.pointwise(CUDNN_POINTWISE_MUL, p.multiply(q, k), p.number(kAttentionScale)));
  const Tensor most = p.reduce(CUDNN_REDUCE_TENSOR_MAX, s),
               raised = p.pointwise(CUDNN_POINTWISE_EXP, p.pointwise(CUDNN_POINTWISE_SUB, s, most)),
               sum = p.reduce(CUDNN_REDUCE_TENSOR_ADD, raised);
  // without this part the graph is not recognised
  graph.pointwise(CUDNN_POINTWISE_ADD, most, p.pointwise(CUDNN_POINTWISE_LOG, sum),
                  spec.training ? graph.memory(kAttentionStats, CUDNN_DATA_FLOAT, p.rows, dense(p.rows))
                                : p.between(p.rows));
  const Tensor weights = graph.between(spec.type, p.products);
  graph.pointwise(CUDNN_POINTWISE_DIV, raised, sum, weights);
  graph.multiply(weights, v, y);
}

void backward(Parts& p) {
  const AttentionSpec& spec = p.spec;
  Graph& graph = p.graph;
  const Tensor q = p.memory(kAttentionQ, p.of_queries, spec.q),
               k = p.memory(kAttentionK, turned(p.of_keys), turned(spec.k)),
               v = p.memory(kAttentionV, turned(p.of_values), turned(spec.v)),
               y = p.memory(kAttentionY, p.results, dense(p.results)),
               dy = p.memory(kAttentionDy, p.results, spec.dy),
               stats = graph.memory(kAttentionStats, CUDNN_DATA_FLOAT, p.rows, dense(p.rows)),
               along = graph.memory(kAttentionAlong, CUDNN_DATA_FLOAT, p.rows, dense(p.rows)),
               dq = p.memory(kAttentionDq, p.of_queries, dense(p.of_queries)),
               dk = p.memory(kAttentionDk, p.of_keys, dense(p.of_keys)),
               dv = p.memory(kAttentionDv, p.of_values, dense(p.of_values)),
               scale = p.number(kAttentionScale);
  graph.pointwise(CUDNN_POINTWISE_MUL,
                  p.reduce(CUDNN_REDUCE_TENSOR_ADD, p.pointwise(CUDNN_POINTWISE_MUL, dy, y)),
                  p.number(kAttentionOne), along);
  const Tensor s = p.pointwise(CUDNN_POINTWISE_MUL, p.multiply(q, k), scale),
               weights =
                   p.pointwise(CUDNN_POINTWISE_EXP, p.masked(p.pointwise(CUDNN_POINTWISE_SUB, s, stats)));
  graph.multiply(p.rounded_turned(weights), dy, dv);
  const Tensor lifted = p.pointwise(CUDNN_POINTWISE_SUB, p.multiply(dy, v), along),
               ds =
                   p.pointwise(CUDNN_POINTWISE_MUL, p.pointwise(CUDNN_POINTWISE_MUL, lifted, weights), scale);
  graph.multiply(p.rounded_turned(ds), q, dk);
  const Tensor keys = graph.between(spec.type, p.of_keys, spec.k);
  graph.reshape(k, keys);
  if (spec.ordered) return graph.multiply(ds, keys, dq);
  const Tensor sums = graph.memory(kAttentionSums, CUDNN_DATA_FLOAT, p.of_queries, dense(p.of_queries));
  graph.multiply(ds, keys, sums);
  graph.pointwise(CUDNN_POINTWISE_IDENTITY, sums, dq);
}

}  // namespace

Graph attention_graph(const Library& lib, const AttentionSpec& spec) {
  Graph graph(lib);
  Parts parts{spec, graph};
  if (spec.backward) backward(parts);
  else forward(parts);
  return graph;
}

}  // namespace weft::cuda::cudnn

#endif
