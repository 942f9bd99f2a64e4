// A client of a store that hands everything on to another one. Tests derive from it and change single
// requests.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <weft/distributed/launch/store.h>

namespace weft::test {

/// The client of a store that hands all on.
class AroundStore : public rpc::Store {
 public:
  explicit AroundStore(std::shared_ptr<rpc::Store> client) : client_(std::move(client)) {}
  using Deadline = rpc::TimePoint;
  using Text = std::optional<std::string>;
  void set(const std::string& key, const std::string& value, Deadline until) override {
    client_->set(key, value, until);
  }
  bool compare_and_set(const std::string& key, const Text& expected, const std::string& value,
                       Deadline until) override {
    return client_->compare_and_set(key, expected, value, until);
  }
  void unset(const std::string& key, Deadline until) override { client_->unset(key, until); }
  Text watch(const std::string& key, const Text& known, Deadline until) override {
    return client_->watch(key, known, until);
  }
  void hold(const std::string& key, const std::string& value, rpc::Duration lease, Deadline until) override {
    client_->hold(key, value, lease, until);
  }
  int64_t add(const std::string& key, int64_t delta, Deadline until) override {
    return client_->add(key, delta, until);
  }
  std::vector<std::string> wait(const std::vector<std::string>& keys, const std::string& abort_key,
                                Deadline until) override {
    return client_->wait(keys, abort_key, until);
  }
  std::vector<Text> peek(const std::vector<std::string>& keys, Deadline until) override {
    return client_->peek(keys, until);
  }
  void set_at_end(const std::string& key, const std::string& value, const std::string& done,
                  Deadline until) override {
    client_->set_at_end(key, value, done, until);
  }
  void set_last(const std::string& key, const std::string& value, Deadline until) override {
    client_->set_last(key, value, until);
  }
  bool may_come_back() const override { return client_->may_come_back(); }
  void close(rpc::Duration linger) override { client_->close(linger); }

 private:
  const std::shared_ptr<rpc::Store> client_;
};

}  // namespace weft::test
