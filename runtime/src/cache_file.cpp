// Small texts that the runtime keeps for later processes, in files of the user's that can be made again.
#include "cache_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "sha256.hpp"

namespace dhlo {
namespace {

constexpr size_t kMostBytes = 4096;

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

bool make_folders(const std::string& path) {
  for (size_t at = path.find('/', 1);; at = path.find('/', at + 1)) {
    const std::string part = path.substr(0, at);
    if (mkdir(part.c_str(), 0755) != 0 && errno != EEXIST) return false;
    if (at == std::string::npos) return true;
  }
}

}  // namespace

std::string cache_folder() {
  if (const char* own = secure_getenv("DHLO_CACHE_DIR"); own != nullptr && *own != 0) return own;
  if (const char* all = secure_getenv("XDG_CACHE_HOME"); all != nullptr && *all == '/')
    return std::string(all) + "/dhlo";
  if (const char* home = secure_getenv("HOME"); home != nullptr && *home == '/')
    return std::string(home) + "/.cache/dhlo";
  return "";
}

std::string start_of(const char* path) {
  const File file(path, O_RDONLY);
  return file.is_open() ? file.read_start() : std::string();
}

std::string read_cache_file(const std::string& path) {
  if (path.empty()) return "";
  const File in(path.c_str(), O_RDONLY | O_NONBLOCK);
  struct stat status{};
  if (!in.is_open() || fstat(in.get(), &status) != 0 || !S_ISREG(status.st_mode)) return "";
  if ((status.st_uid != geteuid() && status.st_uid != 0) || (status.st_mode & (S_IWGRP | S_IWOTH)) != 0) return "";
  return in.read_start();
}

void write_cache_file(const std::string& path, std::string_view text) {
  if (path.empty() || !make_folders(path.substr(0, path.rfind('/')))) return;
  const std::string other = path + "." + std::to_string(getpid()) + "." + std::to_string(gettid()) + ".tmp";
  unlink(other.c_str());  // of a thread of the same number that was killed
  File out(other.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0644);
  if (!out.is_open()) return;
  const bool whole = out.write_all(text) && fchmod(out.get(), 0644) == 0;
  if (!out.close_now() || !whole || rename(other.c_str(), path.c_str()) != 0) unlink(other.c_str());
}

std::string digest_of(std::string_view text) {
  const Digest digest = sha256(text.data(), text.size());
  return to_hex(digest.data(), digest.size());
}

std::string with_digest(const std::string& text) { return text + "sha256 " + digest_of(text) + "\n"; }

}  // namespace dhlo
