#include "workers.h"

namespace sssd {

Crew::Crew(std::size_t helpers) {
  for (std::size_t i = 0; i < helpers; ++i) threads_.emplace_back([this, i] { help(i + 1); });
}

Crew::~Crew() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Crew::run(std::size_t n, const Work& work) {
  {
    const std::lock_guard lock(mutex_);
    work_ = &work;
    n_ = n;
    next_ = 0;
    ++batch_;
  }
  wake_.notify_all();
  for (std::size_t i = next_++; i < n; i = next_++) work(0, i);
  std::unique_lock lock(mutex_);
  work_ = nullptr;  // helpers still asleep have nothing to join
  idle_.wait(lock, [&] { return busy_ == 0; });
}

void Crew::help(std::size_t worker) {
  std::unique_lock lock(mutex_);
  for (std::size_t joined = 0;;) {
    wake_.wait(lock, [&] { return closing_ || (work_ != nullptr && batch_ != joined); });
    if (closing_) return;
    joined = batch_;
    const Work& work = *work_;
    const std::size_t n = n_;
    ++busy_;
    lock.unlock();
    for (std::size_t i = next_++; i < n; i = next_++) work(worker, i);
    lock.lock();
    if (--busy_ == 0) idle_.notify_one();
  }
}

Background::~Background() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Background::post(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    if (!thread_.joinable()) thread_ = std::thread([this] { serve(); });
  }
  changed_.notify_all();
}

void Background::settle() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return tasks_.empty(); });
}

void Background::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return closing_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    const std::function<void()>& task = tasks_.front();
    lock.unlock();
    task();
    lock.lock();
    tasks_.pop_front();
    changed_.notify_all();
  }
}

}  // namespace sssd
