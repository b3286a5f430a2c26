// A batch server over standard input: one model, and several threads that each have a session of it.
//
//   server model.so [THREADS [LARGEST_BATCH]]
//
// The model's input is a matrix of floats of which a row is a request, its first output has a row for each. A line of
// numbers is a request, answered by a line of numbers, in the order of the requests; one that the model can't answer by
// a line that begins with "error: ". What waits when a thread is free is answered together, as one batch.
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <iostream>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "dhlo/runtime.hpp"

namespace {

struct Request {
  int64_t number = 0;
  std::vector<float> row;
  std::string error;  // if it is no row of numbers
};

// Requests that wait, and answers that wait for those of earlier requests.
class Queue {
 public:
  void put(Request request) {
    const std::lock_guard<std::mutex> lock(mutex_);
    waiting_.push_back(std::move(request));
    changed_.notify_one();
  }
  void close() {
    const std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }
  // Up to `largest` requests of equal length, in their order; none when there will be no more.
  std::vector<Request> take(size_t largest) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return closed_ || !waiting_.empty(); });
    std::vector<Request> batch;
    while (!waiting_.empty() && batch.size() < largest) {
      if (!batch.empty() && waiting_.front().row.size() != batch[0].row.size()) break;
      batch.push_back(std::move(waiting_.front()));
      waiting_.pop_front();
    }
    return batch;
  }
  void answer(int64_t number, std::string text) {
    const std::lock_guard<std::mutex> lock(mutex_);
    answers_[number] = std::move(text);
    for (auto next = answers_.begin(); next != answers_.end() && next->first == printed_; ++printed_) {
      std::cout << next->second << '\n';
      next = answers_.erase(next);
    }
    std::cout.flush();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Request> waiting_;
  std::map<int64_t, std::string> answers_;
  int64_t printed_ = 0;
  bool closed_ = false;
};

Request read_request(int64_t number, const std::string& line) {
  Request request;
  request.number = number;
  std::istringstream words(line);
  for (std::string word; words >> word;) {
    char* end = nullptr;
    request.row.push_back(std::strtof(word.c_str(), &end));
    if (*end != '\0') request.error = "'" + word + "' is no number";
  }
  return request;
}

std::string write_row(const float* row, int64_t length) {
  std::string text;
  char number[32];
  for (int64_t i = 0; i < length; ++i) {
    std::snprintf(number, sizeof number, i > 0 ? " %.9g" : "%.9g", static_cast<double>(row[i]));
    text += number;
  }
  return text;
}

void run_batch(dhlo::Session* session, const std::vector<Request>& batch, Queue* queue) {
  std::vector<float> input;
  for (const Request& request : batch) input.insert(input.end(), request.row.begin(), request.row.end());
  const auto rows = static_cast<int64_t>(batch.size());
  session->run({dhlo::Tensor::of(input.data(), {rows, static_cast<int64_t>(batch[0].row.size())})});
  const dhlo::Tensor output = session->output(0);
  if (output.sizes().empty() || output.sizes()[0] != rows)
    throw std::runtime_error("the model's output has no row for each request");
  const int64_t length = rows > 0 ? output.elements() / rows : 0;
  for (int64_t i = 0; i < rows; ++i)
    queue->answer(batch[static_cast<size_t>(i)].number, write_row(output.data<float>() + i * length, length));
}

void serve(dhlo::Session session, size_t largest, Queue* queue) {
  for (std::vector<Request> batch; !(batch = queue->take(largest)).empty();) {
    std::vector<Request> rows;
    for (Request& request : batch) {
      if (request.error.empty())
        rows.push_back(std::move(request));
      else
        queue->answer(request.number, "error: " + request.error);
    }
    if (rows.empty()) continue;
    try {
      run_batch(&session, rows, queue);
    } catch (const std::exception& error) {  // the session stays usable
      for (const Request& request : rows) queue->answer(request.number, std::string("error: ") + error.what());
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 2 ? std::atoi(argv[2]) : 4;
  const int largest = argc > 3 ? std::atoi(argv[3]) : 16;
  if (argc < 2 || argc > 4 || threads < 1 || threads > 1024 || largest < 1) {
    std::fprintf(stderr, "usage: %s model.so [THREADS [LARGEST_BATCH]]\n", argv[0]);
    return 2;
  }
  try {
    dhlo_model_options options;
    dhlo_model_options_init(&options);
    options.num_threads = 1;  // of a call: calls run side by side
    const dhlo::Model model = dhlo::Model::load(argv[1], &options);
    Queue queue;
    std::vector<dhlo::Session> sessions;  // made here, where what fails is reported
    for (int i = 0; i < threads; ++i) sessions.emplace_back(model);
    std::vector<std::thread> workers;
    for (dhlo::Session& session : sessions)
      workers.emplace_back(serve, std::move(session), static_cast<size_t>(largest), &queue);
    int64_t number = 0;
    for (std::string line; std::getline(std::cin, line); ++number) queue.put(read_request(number, line));
    queue.close();
    for (std::thread& worker : workers) worker.join();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
  return 0;
}
