// The file in which what was measured of a machine is kept, so that later processes need not measure again.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "cpu.hpp"
#include "machine.hpp"
#include "sha256.hpp"
#include "support.hpp"

namespace dhlo {
namespace {

// Of how facts are measured and written: another one isn't read.
constexpr const char* kVersion = "dhlo machine 1";
constexpr size_t kMostBytes = 4096;

std::string digest_of(std::string_view text) {
  const Digest digest = sha256(text.data(), text.size());
  return to_hex(digest.data(), digest.size());
}

class File {
 public:
  File(const char* path, int flags, mode_t mode = 0) : fd_(open(path, flags | O_CLOEXEC | O_NOFOLLOW, mode)) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() { close_now(); }
  bool is_open() const { return fd_ >= 0; }
  int get() const { return fd_; }
  bool close_now() {
    const bool ok = fd_ < 0 || close(fd_) == 0;
    fd_ = -1;
    return ok;
  }

  // Up to kMostBytes from the start; reads of less than asked for are gone on with.
  std::string read_start() const {
    std::string text(kMostBytes, '\0');
    size_t size = 0;
    while (size < text.size()) {
      const ssize_t more = read(fd_, text.data() + size, text.size() - size);
      if (more < 0 && errno == EINTR) continue;
      if (more <= 0) break;
      size += static_cast<size_t>(more);
    }
    text.resize(size);
    return text;
  }

  bool write_all(std::string_view text) const {
    while (!text.empty()) {
      const ssize_t written = write(fd_, text.data(), text.size());
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) return false;
      text.remove_prefix(static_cast<size_t>(written));
    }
    return true;
  }

 private:
  int fd_;
};

std::string start_of(const char* path) {
  const File file(path, O_RDONLY);
  return file.is_open() ? file.read_start() : std::string();
}

// The lines of the first processor's description that tell models, microcode and what a system lets be used of them
// apart.
std::string processor() {
  constexpr const char* kFields[] = {"vendor_id", "cpu family", "model",   "stepping",
                                     "microcode", "CPU ",       "flags\t", "Features\t"};
  const std::string all = start_of("/proc/cpuinfo");
  std::string out;
  for (size_t at = 0; at < all.size() && all[at] != '\n';) {
    const size_t end = std::min(all.find('\n', at), all.size());
    const std::string line = all.substr(at, end - at);
    for (const char* field : kFields)
      if (line.compare(0, std::strlen(field), field) == 0) {
        out += line + '\n';
        break;
      }
    at = end + 1;
  }
  return out;
}

// DHLO_CACHE_DIR, else the user's folder for what can be made again; empty if there is none.
std::string folder() {
  if (const char* own = secure_getenv("DHLO_CACHE_DIR"); own != nullptr && *own != 0) return own;
  if (const char* all = secure_getenv("XDG_CACHE_HOME"); all != nullptr && *all == '/')
    return std::string(all) + "/dhlo";
  if (const char* home = secure_getenv("HOME"); home != nullptr && *home == '/')
    return std::string(home) + "/.cache/dhlo";
  return "";
}

bool make_folders(const std::string& path) {
  for (size_t at = path.find('/', 1);; at = path.find('/', at + 1)) {
    const std::string part = path.substr(0, at);
    if (mkdir(part.c_str(), 0755) != 0 && errno != EEXIST) return false;
    if (at == std::string::npos) return true;
  }
}

std::string lines_of(const std::string& key, const Facts& facts) {
  std::string text = std::string(kVersion) + "\nkey " + key + "\n";
  for (int64_t i = 0; i < DHLO_MACHINE_FIELDS; ++i)
    if (fact_info(i).measured)
      text += std::string(fact_info(i).name) + " " + std::to_string(facts[static_cast<size_t>(i)]) + "\n";
  return text;
}

std::string with_digest(const std::string& text) { return text + "sha256 " + digest_of(text) + "\n"; }

}  // namespace

FactsFile facts_file() {
  std::string identity = processor();
  for (const char* name : {"size", "shared_cpu_list"})
    for (int level = 0; level < 4; ++level) {
      char path[96];
      std::snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/%s", level, name);
      identity += start_of(path);
    }
  identity += start_of("/sys/devices/system/cpu/online");
  identity += cpu_supports("amx-tile") ? "tiles" : "";  // which a system may refuse, and grant later
  FactsFile file{folder(), digest_of(identity)};
  if (!file.path.empty()) file.path += "/machine-" + file.key.substr(0, 16) + ".txt";
  return file;
}

bool read_facts(const FactsFile& file, Facts* facts) noexcept {
  bool ok = false;
  guard(
      [&] {
        if (file.path.empty()) return;
        const File in(file.path.c_str(), O_RDONLY | O_NONBLOCK);
        struct stat status{};
        if (!in.is_open() || fstat(in.get(), &status) != 0 || !S_ISREG(status.st_mode)) return;
        if ((status.st_uid != geteuid() && status.st_uid != 0) || (status.st_mode & (S_IWGRP | S_IWOTH)) != 0) return;
        // Whole if it is what would be written of the numbers in it.
        const std::string text = in.read_start();
        Facts read = *facts;
        for (int64_t i = 0; i < DHLO_MACHINE_FIELDS; ++i) {
          const FactInfo& info = fact_info(i);
          if (!info.measured) continue;
          const size_t at = text.find("\n" + std::string(info.name) + " ");
          if (at == std::string::npos) return;
          const int64_t value = std::strtoll(text.c_str() + at + std::strlen(info.name) + 2, nullptr, 10);
          if ((value < info.least || value > info.most)) return;
          read[static_cast<size_t>(i)] = value;
        }
        if (text != with_digest(lines_of(file.key, read))) return;
        *facts = read;
        ok = true;
      },
      [](const char*) {});
  return ok;
}

void write_facts(const FactsFile& file, const Facts& facts) noexcept {
  guard(
      [&] {
        if (file.path.empty() || !make_folders(file.path.substr(0, file.path.rfind('/')))) return;
        const std::string other = file.path + "." + std::to_string(getpid()) + ".tmp";
        unlink(other.c_str());  // of a process of the same number that was killed
        File out(other.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0644);
        if (!out.is_open()) return;
        const bool whole = out.write_all(with_digest(lines_of(file.key, facts))) && fchmod(out.get(), 0644) == 0;
        if (!out.close_now() || !whole || rename(other.c_str(), file.path.c_str()) != 0) unlink(other.c_str());
      },
      [](const char*) {});
}

}  // namespace dhlo
