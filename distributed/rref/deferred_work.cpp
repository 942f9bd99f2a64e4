// The deferred work of references (references.cpp, steps 9 and 10): ACCEPT and DELETE messages, probes, ends
// of watches, and values to release. The deletes of one drain are sent together, one message per owner.
#include <weft/distributed/rref/inner/deferred_work.h>

#include <map>

#include <weft/distributed/rref/inner/reference_messages.h>

namespace weft::rpc::detail {

void DeferredWork::add(DeferredItem item) noexcept {
  std::vector<DeferredItem> items;
  items.push_back(std::move(item));
  add(std::move(items));
}

void DeferredWork::add(std::vector<DeferredItem> items) noexcept {
  if (items.empty()) return;
  bool post = false;
  {
    TablesLock lock(context_);
    if (!context_.stopped) {
      for (DeferredItem& item : items) queue_.push_back(std::move(item));
      post = !std::exchange(drain_posted_, true);
    }
  }
  if (post) context_.runtime->post([keep = context_.references(), this] { drain(); });
}

void DeferredWork::drain() {
  for (;;) {
    std::vector<DeferredItem> items;
    {
      TablesLock lock(context_);
      drain_posted_ = false;
      if (queue_.empty()) break;
      items = std::move(queue_);
      queue_.clear();
      ++draining_;
    }
    const auto agent = context_.agent();
    std::map<Life, std::vector<DeferredItem>> deletes;
    for (DeferredItem& item : items) {
      switch (item.kind) {
        case DeferredItem::Kind::kDelete: deletes[item.peer].push_back(std::move(item)); break;
        case DeferredItem::Kind::kUnwatch:
          if (agent) agent->watch(item.peer, -1);
          break;
        case DeferredItem::Kind::kAccept:
          if (agent) send_accept(*agent, item.peer, item.fork);
          break;
        case DeferredItem::Kind::kProbe:
          if (agent) probe_(*agent, item.fork);
          break;
        case DeferredItem::Kind::kDrop:
          context_.trace("let go of ", item.rref);
          item.drop.reset();
          break;
      }
    }
    if (agent)
      for (const auto& [peer, list] : deletes) send_deletes(*agent, peer, list);
    TablesLock lock(context_);
    --draining_;
  }
  context_.changed();
}

/// Step 10, at the user.
void DeferredWork::send_deletes(Agent& agent, Life to, const std::vector<DeferredItem>& items) {
  Message message;
  {
    Encoder out(message, &agent, to);
    out.size(items.size());
    for (const DeferredItem& item : items) {
      put(out, item.rref);
      put(out, item.fork);
      out.put(item.site);
      out.number(static_cast<uint8_t>(item.refused));
      context_.trace("delete ", item.rref, " ", item.fork);
    }
  }
  ++deletes_under_way_;
  auto done = [keep = context_.references(), this](std::exception_ptr, const Message*) {
    --deletes_under_way_;
    context_.changed();
  };
  try {
    agent.call(to, Kind::kDelete, std::move(message), {Duration(0), "a reference's end"},
               std::make_unique<DoneSink>(done));
  } catch (const std::exception&) {  // the agent has ended; the owner removes its forks
    --deletes_under_way_;
  }
}

/// Step 9: reports to the parent's worker that its child is confirmed or has failed.
void DeferredWork::send_accept(Agent& agent, Life to, ForkId fork) {
  Message message;
  {
    Encoder out(message, &agent, to);
    out.number(kAcceptByte);
    put(out, fork);
  }
  try {
    agent.call(to, Kind::kAccept, std::move(message), {Duration(0), "a reference's arrival"},
               std::make_unique<DoneSink>([](std::exception_ptr, const Message*) {}));
  } catch (const std::exception&) {  // as above
  }
}

}  // namespace weft::rpc::detail
