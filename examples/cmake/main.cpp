// Calls a compiled model from C++, through a small wrapper that owns shapes and throws on errors.

#include <cstdio>
#include <initializer_list>
#include <stdexcept>
#include <vector>

#include "classifier.h"

namespace {

class Tensor {
 public:
  explicit Tensor(std::vector<int64_t> shape) : shape_(std::move(shape)) {
    std::size_t count = 1;
    for (auto size : shape_) count *= static_cast<std::size_t>(size);
    values.resize(count);
    tensor_.data = values.data();
    tensor_.device = {kDLCPU, 0};
    tensor_.ndim = static_cast<int32_t>(shape_.size());
    tensor_.dtype = {kDLFloat, 32, 1};
    tensor_.shape = shape_.data();
  }
  Tensor(const Tensor &) = delete;
  Tensor &operator=(const Tensor &) = delete;

  const DLTensor *get() const { return &tensor_; }

  std::vector<float> values;

 private:
  std::vector<int64_t> shape_;
  DLTensor tensor_{};
};

void run(std::initializer_list<const DLTensor *> args) {
  if (classifier(args.begin(), static_cast<int32_t>(args.size())) != 0)
    throw std::runtime_error(tw_last_error());
}

}  // namespace

int main() {
  for (int64_t batch : {1, 5}) {  // one library for every size
    Tensor x({batch, 4}), scores({batch, 3});
    for (std::size_t i = 0; i < x.values.size(); i++) x.values[i] = 0.1f * static_cast<float>(i);
    run({x.get(), scores.get()});
    std::printf("%ld rows, first: %.3f %.3f %.3f\n", static_cast<long>(batch), scores.values[0],
                scores.values[1], scores.values[2]);
  }
  try {
    Tensor x({2, 5}), scores({2, 3});
    run({x.get(), scores.get()});
  } catch (const std::runtime_error &error) {
    std::printf("refused: %s\n", error.what());
    return 0;
  }
  return 1;
}
