// Serves a language model over standard input.
//
//   serve step.so [MAX_TOKENS [THREADS]]
//
// The model is a step over pools of blocks (`dhlo compile step.pt2 --pages 'keys*=16' ...`). A line of token ids is a
// request, taken as it comes; requests are computed together. Each is answered, when it has ended, by a line: its
// number, from 1, a colon and its tokens, the most likely ones; one that is refused by its number and what is wrong
// with it.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "dhlo/serve.hpp"

namespace {

// Prints what requests answer, until the engine is closed.
void answer(dhlo::Engine& engine, std::mutex& output) {
  std::map<uint64_t, std::string> lines;
  try {
    for (;;)
      for (const dhlo_event* event : engine.poll(std::chrono::hours(1))) {
        std::string& line = lines[event->request];
        for (int64_t i = 0; i < event->num_tokens; ++i) line += " " + std::to_string(event->tokens[i]);
        if (event->finish == DHLO_FINISH_ERROR) line = std::string(" error: ") + event->error;
        if (event->last == 0) continue;
        const std::lock_guard<std::mutex> lock(output);
        std::cout << *static_cast<const int64_t*>(event->user) << ":" << line << std::endl;
        lines.erase(event->request);
        delete static_cast<int64_t*>(event->user);
      }
  } catch (const dhlo::RuntimeError& error) {
    if (error.status() != DHLO_CANCELLED) std::cerr << "error: " << error.what() << std::endl;
  }
}

void serve(const char* path, int64_t max_tokens, int64_t threads) {
  dhlo_model_options how;
  dhlo_model_options_init(&how);
  how.num_threads = threads;
  dhlo::Engine engine(dhlo::Model::load(path, &how));
  std::mutex output;
  std::thread answers([&] { answer(engine, output); });
  int64_t number = 0;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::vector<int32_t> prompt;
    for (int32_t token = 0; words >> token;) prompt.push_back(token);
    dhlo_sampling sampling;
    dhlo_sampling_init(&sampling);
    sampling.temperature = 0;
    sampling.max_tokens = max_tokens;
    auto* mine = new int64_t(++number);
    sampling.user = mine;
    try {
      if (!words.eof()) throw dhlo::RuntimeError(DHLO_INVALID_ARGUMENT, "a request is a line of token ids");
      engine.submit(prompt, &sampling);
    } catch (const dhlo::RuntimeError& error) {
      const std::lock_guard<std::mutex> lock(output);
      std::cout << number << ": error: " << error.what() << std::endl;
      delete mine;
    }
  }
  engine.drain(std::chrono::hours(24));
  engine.close();
  answers.join();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 4) {
    std::fprintf(stderr, "usage: serve step.so [MAX_TOKENS [THREADS]]\n");
    return 2;
  }
  try {
    serve(argv[1], argc > 2 ? std::atoll(argv[2]) : 16, argc > 3 ? std::atoll(argv[3]) : 0);
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << std::endl;
    return 1;
  }
  return 0;
}
