#include "store.h"

namespace sssd {

Namespace& Store::at(std::int64_t id) {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<Namespace>& entry = namespaces_[id];
  if (!entry) entry = std::make_unique<Namespace>();
  return *entry;
}

std::size_t Store::memory() const {
  const std::lock_guard lock(mutex_);
  std::size_t bytes = 0;
  for (const auto& [id, space] : namespaces_) {
    bytes += sizeof(Namespace);
    for (const auto& segment : *space->segments()) bytes += segment->memory();
  }
  return bytes;
}

void Store::check(std::vector<std::string>& problems) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [id, space] : namespaces_) {
    for (const auto& segment : *space->segments()) segment->check(problems);
    for (const Curve& curve : space->learned.curves) curve.check(problems);
    space->learned.paths.check(problems);
  }
}

}  // namespace sssd
