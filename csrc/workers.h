// Threads: helpers that share one batch of rows, and one that indexes long prompts in the background.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace sssd {

// Runs work(worker, i) for every i < n, each once, on the caller (worker 0) and on helpers that join as they wake: a
// caller never waits for a sleeping helper, only for rows a helper has begun.
// Cost: a few hundred nanoseconds for the caller when helpers are asleep. One caller at a time.
class Crew {
 public:
  using Work = std::function<void(std::size_t worker, std::size_t i)>;

  explicit Crew(std::size_t helpers);
  ~Crew();
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  std::size_t workers() const { return threads_.size() + 1; }
  void run(std::size_t n, const Work& work);

 private:
  void help(std::size_t worker);

  std::mutex mutex_;  // guards all below but next_
  std::condition_variable wake_, idle_;
  const Work* work_ = nullptr;  // null = no batch to join
  std::size_t n_ = 0;
  std::size_t busy_ = 0;  // helpers inside the batch
  std::size_t batch_ = 0;
  bool closing_ = false;
  std::atomic<std::size_t> next_{0};
  std::vector<std::thread> threads_;
};

// Runs tasks in order on one thread of its own, started with the first. Pending tasks are finished before it goes.
class Background {
 public:
  ~Background();

  void post(std::function<void()> task);
  // Returns when everything posted so far is done.
  void settle();

 private:
  void serve();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;  // the front one is running
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace sssd
