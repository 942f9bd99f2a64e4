#include <weft/weft.h>

struct Twice {
  static weft::Tensor forward(weft::FunctionContext&, const weft::Tensor& x) { return x * 2; }
  static weft::Tensor backward(weft::FunctionContext&, const weft::Tensor& g) { return g * 2; }
};

int main() {
  const weft::Tensor x = weft::zeros(3);
  return weft::apply_function<Twice>(x).dim();  // MISTAKE: backward is static GradList backward(FunctionContext&
}
