// Maps the code of a model and connects it with the functions of this process that it calls.
#include "code.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "support.hpp"

namespace dhlo {
namespace {

// Those that every process has, and whose functions are known or found without opening anything.
bool is_system_library(const std::string& name) {
  for (const char* prefix :
       {"libc.so.", "libm.so.", "libpthread.so.", "libdl.so.", "librt.so.", "libgcc_s.so.", "ld-linux"})
    if (name.compare(0, std::strlen(prefix), prefix) == 0) return true;
  return false;
}

// With DHLO_PERF_MAP=1, names of the code's functions for Linux's perf and others that read /tmp/perf-PID.map.
void write_perf_map(const uint8_t* image, int64_t bytes, uint64_t bias) {
  const char* wanted = secure_getenv("DHLO_PERF_MAP");
  if (wanted == nullptr || std::strcmp(wanted, "1") != 0) return;
  const std::string path = "/tmp/perf-" + std::to_string(getpid()) + ".map";
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return;
  std::string text;
  for (const ElfImage::Function& function : ElfImage::functions_of(image, bytes)) {
    char place[48];
    std::snprintf(place, sizeof place, "%llx %llx ", static_cast<unsigned long long>(bias + function.address),
                  static_cast<unsigned long long>(function.bytes));
    text += place + std::string(function.name) + "\n";
  }
  for (size_t done = 0; done < text.size();) {
    const ssize_t wrote = write(fd, text.data() + done, text.size() - done);
    if (wrote <= 0) break;
    done += static_cast<size_t>(wrote);
  }
  close(fd);
}

}  // namespace

Code::~Code() {
  for (void (*destructor)() : destructors_) destructor();
  for (void* library : libraries_) dlclose(library);
}

// Libraries of custom operators: from the folders that the model names, or where the system finds them.
void Code::open_libraries(const std::string& label) {
  for (const std::string& name : image_.needed()) {
    if (is_system_library(name)) continue;
    void* opened = nullptr;
    std::string reason;
    auto attempt = [&](const std::string& path) {
      if (opened != nullptr) return;
      opened = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (opened == nullptr) reason = dlerror();
    };
    if (name.find('/') == std::string::npos)
      for (const std::string& folder : image_.folders())
        if (access((folder + "/" + name).c_str(), R_OK) == 0) attempt(folder + "/" + name);
    attempt(name);
    if (opened == nullptr) throw Error(DHLO_FORMAT, label + ": its code cannot be loaded: " + reason);
    libraries_.push_back(opened);
  }
}

const void* Code::resolve(const char* name) const {
  if (const void* known = known_function(name); known != nullptr) return known;
  for (void* library : libraries_)
    if (const void* found = dlsym(library, name); found != nullptr) return found;
  return dlsym(RTLD_DEFAULT, name);
}

const dhlo_abi_model* Code::load(const uint8_t* image, int64_t bytes, const std::string& label) {
  image_.map(image, bytes, label);
  open_libraries(label);
  image_.relocate([this](const char* name) { return resolve(name); });
  const void* symbol = image_.find(DHLO_ABI_SYMBOL, sizeof(dhlo_abi_model));
  if (symbol == nullptr) throw Error(DHLO_FORMAT, label + ": its code does not export '" DHLO_ABI_SYMBOL "'");
  const std::vector<void (*)()> constructors = image_.constructors();
  std::vector<void (*)()> destructors = image_.destructors();
  write_perf_map(image, bytes, image_.bias());
  for (void (*constructor)() : constructors) constructor();
  destructors_ = std::move(destructors);
  return static_cast<const dhlo_abi_model*>(symbol);
}

}  // namespace dhlo
