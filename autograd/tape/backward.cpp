// backward() and grad(): each runs a Pass that one thread owns, from checked or default gradients of the
// roots.
#include <weft/autograd/tape/engine.h>
#include <weft/autograd/tape/grad_mode.h>
#include <weft/autograd/tape/inner/backward_to.h>
#include <weft/tensor/factories.h>
#include <weft/tensor/inner/launch.h>

namespace weft {
namespace {

/// Checks the gradients of `roots` and replaces absent ones by ones.
GradList seeds(const char* what, std::span<const Tensor> roots, std::span<const Tensor> gradients) {
  if (roots.empty()) throw AutogradError(str(what, ": no tensors given"));
  if (!gradients.empty() && gradients.size() != roots.size())
    throw AutogradError(str(what, ": ", static_cast<int64_t>(gradients.size()), " gradients for ",
                            static_cast<int64_t>(roots.size()), " tensors"));
  GradList out;
  out.reserve(roots.size());
  for (size_t i = 0; i < roots.size(); ++i) {
    const Tensor& y = roots[i];
    if (!y.requires_grad())
      throw AutogradError(
          str(what, ": tensor ", static_cast<int64_t>(i), " of sizes ", y.sizes(), " does not require grad"));
    if (i < gradients.size() && gradients[i].defined()) {
      const Tensor& g = gradients[i];
      if (g.sizes() != y.sizes())
        throw ShapeError(
            str(what, ": a gradient of sizes ", g.sizes(), " for a tensor of sizes ", y.sizes()));
      out.push_back(g);
    } else {
      if (y.numel() != 1)
        throw AutogradError(str(what, ": a tensor of sizes ", y.sizes(),
                                " needs an explicit gradient; only one element has ones by default"));
      out.push_back(empty_like(y));
      launch::fill_into(out.back(), 1);
    }
  }
  return out;
}

void run(Pass& pass, std::span<const Tensor> roots, GradList given) {
  EdgeList edges;
  edges.reserve(roots.size());
  for (const Tensor& y : roots) edges.push_back(gradient_edge(y));
  pass.mark({edges.data(), edges.size()});
  for (size_t i = 0; i < edges.size(); ++i) pass.deliver(edges[i], std::move(given[i]));
  pass.run();
}

}  // namespace

void backward(std::span<const Tensor> roots, std::span<const Tensor> gradients, bool retain_graph,
              bool create_graph) {
  GradList given = seeds("backward", roots, gradients);
  Pass pass({.retain_graph = retain_graph, .create_graph = create_graph, .sink = nullptr, .shared = false});
  run(pass, roots, std::move(given));
}

void detail::backward_to(GradSink& sink, std::span<const Tensor> roots, std::span<const Tensor> gradients,
                         bool retain_graph) {
  GradList given = seeds("backward", roots, gradients);
  Pass pass({.retain_graph = retain_graph, .create_graph = false, .sink = &sink, .shared = false});
  run(pass, roots, std::move(given));
}

std::vector<Tensor> grad(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                         const std::vector<Tensor>& grad_outputs, const GradOptions& options) {
  GradList given = seeds("grad", outputs, grad_outputs);
  std::vector<Edge> wanted;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined()) launch::throw_undefined("grad", str("input ", i));
    if (!inputs[i].requires_grad())
      throw AutogradError(str("grad: input ", static_cast<int64_t>(i), " of sizes ", inputs[i].sizes(),
                              " does not require grad"));
    wanted.push_back(gradient_edge(inputs[i]));
  }
  Pass pass({.retain_graph = options.retain_graph,
             .create_graph = options.create_graph,
             .sink = nullptr,
             .shared = false});
  pass.capture(wanted);
  run(pass, outputs, std::move(given));
  std::vector<Tensor> out = pass.captured();
  for (size_t i = 0; i < out.size(); ++i) {
    if (out[i].defined()) {
      if (!options.create_graph && out[i].requires_grad()) out[i] = out[i].detach();
      continue;
    }
    if (!options.allow_unused)
      throw AutogradError(str("grad: input ", static_cast<int64_t>(i), " of sizes ", inputs[i].sizes(),
                              " was not reached from the outputs; pass allow_unused = true"));
  }
  return out;
}

}  // namespace weft
