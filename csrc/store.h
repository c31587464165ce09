// Namespaces: which segments a request may draft from, replaced as a whole while others read.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "confidence.h"
#include "segment.h"

namespace sssd {

// One tenant or corpus. Its address never changes; readers take a snapshot and keep it as long as they like.
class Namespace {
 public:
  std::shared_ptr<const Segments> segments() const { return segments_.load(std::memory_order_acquire); }
  void publish(std::shared_ptr<const Segments> segments) { segments_.store(std::move(segments)); }

  Learned learned;  // from the requests that belong here; touched by the loop's thread only

 private:
  std::atomic<std::shared_ptr<const Segments>> segments_{std::make_shared<const Segments>()};
};

// Cost: find O(log namespaces) under a lock held for no longer; publish the same. Namespaces are never dropped.
class Store {
 public:
  // The namespace of an id, made on first use. Any thread.
  Namespace& at(std::int64_t id);

  std::size_t memory() const;
  void check(std::vector<std::string>& problems) const;

 private:
  mutable std::mutex mutex_;  // guards the map, not what it leads to
  std::map<std::int64_t, std::unique_ptr<Namespace>> namespaces_;
};

}  // namespace sssd
