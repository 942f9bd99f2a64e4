// ModuleList and ModuleDict: modules created at run time, owned by the container and registered by number or
// key. A model of N blocks then has the names "blocks.0.weight", "blocks.1.weight", .. They have no forward;
// the model that holds them calls the modules:
//   struct Net : nn::Module {
//     nn::ModuleList blocks;
//     Net(int64_t depth) {
//       for (int64_t i = 0; i < depth; ++i) blocks.append<Block>(64);
//       add("blocks", blocks);
//     }
//     Tensor forward(Tensor x) const {
//       for (const Block& block : blocks.each<Block>()) x = block.forward(x);
//       return x;
//     }
//   };
#pragma once

#include <functional>
#include <memory>

#include <weft/nn/module.h>

namespace weft::nn {

/// Modules by number, from 0; negative numbers count from the end.
class WEFT_API ModuleList : public Module {
 public:
  /// Constructs M(args...) at the end and returns it.
  template <class M, class... Args> M& append(Args&&... args) {
    return append(std::make_unique<M>(std::forward<Args>(args)...));
  }
  /// Takes ownership of an existing module. Throws: ValueError for null.
  template <class M> M& append(std::unique_ptr<M> module) {
    M* made = module.get();
    take(std::move(module));
    return *made;
  }
  size_t size() const { return modules_.size(); }
  bool empty() const { return modules_.empty(); }
  /// Module `index`, counted from the end if negative, as an M.
  /// Throws: IndexError outside [-size(), size()), ValueError that names the module if it is no M.
  template <class M> M& at(int64_t index) const {
    Module& module = (*this)[index];
    if (M* found = dynamic_cast<M*>(&module)) return *found;
    wrong_kind(std::to_string(index), module);
  }
  /// Module `index`, counted from the end if negative. Throws: IndexError.
  Module& operator[](int64_t index) const;
  /// `for (nn::Module& module : list)` visits the modules in order; each<M>() has them as Ms.
  ModuleIterator<ModuleList> begin() const { return {this, 0}; }
  ModuleIterator<ModuleList> end() const { return {this, static_cast<int64_t>(size())}; }
  /// All modules in order, as Ms. Throws: ValueError that names the first that is no M.
  template <class M> std::vector<std::reference_wrapper<M>> each() const {
    std::vector<std::reference_wrapper<M>> out;
    for (int64_t i = 0; i < static_cast<int64_t>(size()); ++i) out.emplace_back(at<M>(i));
    return out;
  }
  std::string name() const override { return "ModuleList"; }

 private:
  friend class ModuleDict;
  void take(std::unique_ptr<Module> module);
  [[noreturn]] static void wrong_kind(const std::string& key, const Module& module);
  std::vector<std::unique_ptr<Module>> modules_;
};

/// Modules by key, in the order of insertion.
class WEFT_API ModuleDict : public Module {
  using Entry = std::pair<std::string, std::unique_ptr<Module>>;

 public:
  /// A key with its module.
  struct Item {
    const std::string& key;
    Module& module;
  };
  class Iterator {
   public:
    explicit Iterator(const Entry* at) : at_(at) {}
    Item operator*() const { return {at_->first, *at_->second}; }
    Iterator& operator++() {
      ++at_;
      return *this;
    }
    bool operator==(const Iterator&) const = default;

   private:
    const Entry* at_;
  };
  /// Constructs M(args...) under `key` and returns it.
  /// Throws: ValueError for a key that exists, is empty or has a dot.
  template <class M, class... Args> M& insert(const std::string& key, Args&&... args) {
    return insert(key, std::make_unique<M>(std::forward<Args>(args)...));
  }
  /// Takes ownership of an existing module. Throws: as above; ValueError for null.
  template <class M> M& insert(const std::string& key, std::unique_ptr<M> module) {
    M* made = module.get();
    take(key, std::move(module));
    return *made;
  }
  size_t size() const { return modules_.size(); }
  bool empty() const { return modules_.empty(); }
  bool contains(const std::string& key) const { return find(key) != nullptr; }
  std::vector<std::string> keys() const;
  /// The module of that key as an M. Throws: IndexError that lists the keys, ValueError if it is no M.
  template <class M> M& at(const std::string& key) const {
    Module& module = (*this)[key];
    if (M* found = dynamic_cast<M*>(&module)) return *found;
    ModuleList::wrong_kind(key, module);
  }
  /// Throws: IndexError.
  Module& operator[](const std::string& key) const;
  /// `for (const auto& [key, module] : dict)` visits the modules in order.
  Iterator begin() const { return Iterator(modules_.data()); }
  Iterator end() const { return Iterator(modules_.data() + modules_.size()); }
  std::string name() const override { return "ModuleDict"; }

 private:
  Module* find(const std::string& key) const;
  void take(const std::string& key, std::unique_ptr<Module> module);
  std::vector<Entry> modules_;
};

}  // namespace weft::nn
