// Compiles under way in this process, by key.
#pragma once

#include <exception>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace commfuse::cache {

/// What a flight brought home. Neither value nor error: it was called off, and whoever waited tries again.
template <typename T>
struct Landing {
  std::optional<T> value;
  std::exception_ptr error;
};

/// One flight per key at a time. A flight ends, whatever its outcome, by leaving the map: a failure is told to those
/// who waited for it and to nobody after them.
template <typename T>
class Flights {
 public:
  /// Held by the one who does the work. Without land() before its end the flight is called off.
  class Pilot {
   public:
    Pilot(Flights& flights, std::string key, std::promise<Landing<T>> promise)
        : flights_(&flights), key_(std::move(key)), promise_(std::move(promise)) {}
    Pilot(Pilot&& other) noexcept
        : flights_(std::exchange(other.flights_, nullptr)),
          key_(std::move(other.key_)),
          promise_(std::move(other.promise_)) {}
    Pilot& operator=(Pilot&&) = delete;
    ~Pilot() { land({}); }

    void land(Landing<T> landing) {
      if (flights_ == nullptr) return;
      std::exchange(flights_, nullptr)->erase(key_);
      promise_.set_value(std::move(landing));
    }

   private:
    Flights* flights_;
    std::string key_;
    std::promise<Landing<T>> promise_;
  };

  struct Boarding {
    std::optional<Pilot> pilot;                ///< set for the one who is to do the work
    std::shared_future<Landing<T>> passenger;  ///< for the others
  };

  [[nodiscard]] Boarding board(const std::string& key) {
    const std::scoped_lock lock(mutex_);
    if (const auto it = flights_.find(key); it != flights_.end()) return {std::nullopt, it->second};
    std::promise<Landing<T>> promise;
    flights_.emplace(key, promise.get_future().share());
    Boarding boarding;
    boarding.pilot.emplace(*this, key, std::move(promise));
    return boarding;
  }

 private:
  void erase(const std::string& key) {
    const std::scoped_lock lock(mutex_);
    flights_.erase(key);
  }

  std::mutex mutex_;
  std::map<std::string, std::shared_future<Landing<T>>> flights_;
};

}  // namespace commfuse::cache
