// The codecs of one worker's edges (edge_codec.h), and the errors that its gradients still owe. A coded
// tensor replaces the original in its message; an extension lists the coded tensors. The receiver needs no
// setting. Internal to distributed autograd.
#pragma once

#include <atomic>
#include <list>
#include <map>

#include <weft/distributed/autograd/edge_codec.h>
#include <weft/distributed/autograd/inner/dist_nodes.h>
#include <weft/distributed/runtime/sync.h>
#include <weft/distributed/wire/message.h>

namespace weft::dist_autograd::detail {

/// The identity of a gradient over the steps of a training.
struct FeedbackKey {
  Life to;              ///< the receiver
  Life maker;           ///< of the context
  int64_t ordinal = 0;  ///< of the message among the context's messages from the receiver
  int64_t slot = 0;
  friend auto operator<=>(const FeedbackKey&, const FeedbackKey&) = default;
};

/// The error that a gradient owes.
struct KeptError {
  FeedbackKey key;
  Tensor error;  ///< float32, never written
};

class EdgeCodecs {
 public:
  void set(WorkerId to, const EdgeCodec& codec);
  void set_limit(int64_t bytes);
  /// Codes the activations among the tensors of a recorded message.
  void code_activations(WorkerId to, rpc::Message& message);
  /// Codes the tensors of a message of gradients, whose slots are `slots`; those with slot -1 travel exactly.
  void code_gradients(rpc::Message& message, const FeedbackKey& first, const std::vector<int64_t>& slots);
  /// Restores the coded tensors of a received message. Throws: WireError for a malformed tensor.
  static void decode(rpc::Message& message);
  /// Forgets the errors kept for a life.
  void peer_lost(Life peer);
  /// All errors, the oldest first: for checkpoints.
  std::vector<KeptError> errors() const;
  /// Keeps these errors in place of all others; the oldest go if they exceed the limit. In a key the
  /// incarnation 0 stands for any life.
  void set_errors(std::vector<KeptError> errors);

  std::atomic<int64_t> coded{0}, saved_bytes{0};
  int64_t feedback_bytes() const;

 private:
  struct Owed {
    Tensor error;
    std::list<FeedbackKey>::iterator age;
  };
  EdgeCodec codec_for(WorkerId to) const;
  /// Codes one tensor; false: it travels exactly.
  bool code(rpc::Message& message, size_t index, const Tensor& value, WireCodec codec, bool requires_grad);
  Tensor take_owed(const FeedbackKey& key, const Tensor& gradient);
  void owe(const FeedbackKey& key, Tensor error);
  std::map<FeedbackKey, Owed>::iterator find_owed(const FeedbackKey& key) WEFT_REQUIRES(mutex_);
  void forget(std::map<FeedbackKey, Owed>::iterator entry) WEFT_REQUIRES(mutex_);

  std::atomic<bool> any_{false};
  mutable rpc::Mutex mutex_;
  std::map<WorkerId, EdgeCodec> codecs_ WEFT_GUARDED_BY(mutex_);
  std::map<FeedbackKey, Owed> owed_ WEFT_GUARDED_BY(mutex_);
  std::list<FeedbackKey> ages_ WEFT_GUARDED_BY(mutex_);  // the oldest first
  int64_t bytes_ WEFT_GUARDED_BY(mutex_) = 0;
  int64_t limit_ WEFT_GUARDED_BY(mutex_) = int64_t{64} << 20;
};

}  // namespace weft::dist_autograd::detail
