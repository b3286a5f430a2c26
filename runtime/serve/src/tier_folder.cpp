// Blocks in files of a folder, some in each, which processes may share and which outlives them.
#include "tier_folder.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <utility>

namespace dhlo::serve {
namespace {

constexpr const char* kSuffix = ".kv";
constexpr const char* kUnfinished = ".tmp";
constexpr int64_t kSecond = 1000000000;

int64_t in_ns(const timespec& time) { return int64_t{time.tv_sec} * kSecond + time.tv_nsec; }

int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return in_ns(now);
}

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

class File {
 public:
  explicit File(const std::string& path, int flags) : fd_(open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW, 0600)) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() { close_now(); }
  bool is_open() const { return fd_ >= 0; }
  int get() const { return fd_; }
  bool close_now() { return fd_ < 0 || close(std::exchange(fd_, -1)) == 0; }

  bool read_at(int64_t offset, uint8_t* data, int64_t bytes) const {
    while (bytes > 0) {
      const ssize_t more = pread(fd_, data, static_cast<size_t>(bytes), offset);
      if (more < 0 && errno == EINTR) continue;
      if (more <= 0) return false;
      data += more, offset += more, bytes -= more;
    }
    return true;
  }
  bool write_all(const uint8_t* data, int64_t bytes) const {
    while (bytes > 0) {
      const ssize_t more = ::write(fd_, data, static_cast<size_t>(bytes));
      if (more < 0 && errno == EINTR) continue;
      if (more <= 0) return false;
      data += more, bytes -= more;
    }
    return true;
  }

 private:
  int fd_;
};

void make_folders(const std::string& path) {
  for (size_t at = path.find('/', 1);; at = path.find('/', at + 1)) {
    mkdir(path.substr(0, at).c_str(), 0700);
    if (at == std::string::npos) return;
  }
}

}  // namespace

TierFolder::TierFolder(std::string path, int64_t most_bytes, TierLayout layout)
    : path_(std::move(path)), most_bytes_(most_bytes), layout_(std::move(layout)) {}

// All files of blocks, of whatever model. What others left unfinished long ago is removed.
std::vector<TierFolder::Listed> TierFolder::list() {
  std::vector<Listed> all;
  struct Closer {
    DIR* dir;
    ~Closer() {
      if (dir != nullptr) closedir(dir);
    }
  } const folder{opendir(path_.c_str())};
  bytes_ = 0;
  if (folder.dir == nullptr) return all;
  while (const dirent* entry = readdir(folder.dir)) {
    std::string name = entry->d_name;
    const bool unfinished = ends_with(name, kUnfinished);
    struct stat status{};
    if (!unfinished && !ends_with(name, kSuffix)) continue;
    if (fstatat(dirfd(folder.dir), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(status.st_mode))
      continue;
    if (unfinished) {
      if (in_ns(status.st_mtim) < now_ns() - 600 * kSecond) unlinkat(dirfd(folder.dir), name.c_str(), 0);
      continue;
    }
    bytes_ += status.st_size;
    all.push_back({std::move(name), status.st_size, in_ns(status.st_mtim)});
  }
  return all;
}

void TierFolder::scan() {
  struct stat status{};
  const bool there = stat(path_.c_str(), &status) == 0;
  const int64_t changed = there ? in_ns(status.st_mtim) : 0;
  // Times are coarse: after a change, the folder is looked at again for a while.
  if (changed == scanned_ns_ && now_ns() - changed > kSecond) return;
  scanned_ns_ = changed;
  std::unordered_set<std::string> present;
  for (const Listed& listed : list()) {
    present.insert(listed.file);
    if (files_.count(listed.file) == 0 && bad_.count(listed.file) == 0) learn(listed.file, listed.bytes);
  }
  std::vector<std::string> gone;
  for (const auto& [file, names] : files_)
    if (present.count(file) == 0) gone.push_back(file);
  for (const std::string& file : gone) forget(file);
}

void TierFolder::learn(const std::string& file, int64_t bytes) {
  const File in(in_folder(file), O_RDONLY | O_NONBLOCK);
  uint8_t begin[kTierPrefix];
  if (!in.is_open()) return;
  std::vector<TierEntry> entries;
  if (bytes >= kTierPrefix && in.read_at(0, begin, kTierPrefix)) {
    const int64_t header_bytes = tier_header_bytes(layout_, begin);
    if (header_bytes < 0) {
      files_[file];  // another model's, or of another time
      return;
    }
    std::vector<uint8_t> header(static_cast<size_t>(header_bytes));
    if (header_bytes > bytes || !in.read_at(0, header.data(), header_bytes) ||
        !read_tier_header(layout_, header, bytes, &entries))
      entries.clear();
  }
  if (entries.empty()) {
    discard(file);
    return;
  }
  std::vector<BlockName>& names = files_[file];
  for (const TierEntry& entry : entries)
    if (index_.emplace(entry.name, Place{file, entry.offset, entry.digest}).second) names.push_back(entry.name);
}

void TierFolder::forget(const std::string& file) {
  const auto found = files_.find(file);
  if (found == files_.end()) return;
  for (const BlockName& name : found->second) index_.erase(name);
  files_.erase(found);
}

// A file that isn't what it should be.
void TierFolder::discard(const std::string& name) {
  const std::string file = name;  // it may be of what is forgotten
  ++damaged_;
  forget(file);
  if (unlink(in_folder(file).c_str()) != 0 && errno != ENOENT) bad_.insert(file);
}

bool TierFolder::make_room(int64_t bytes) {
  if (bytes > most_bytes_) return false;
  std::vector<Listed> all = list();
  if (bytes_ <= most_bytes_ - bytes) return true;
  std::sort(all.begin(), all.end(), [](const Listed& a, const Listed& b) { return a.used_ns < b.used_ns; });
  for (const Listed& listed : all) {
    if (bytes_ <= most_bytes_ - bytes) break;
    if (unlink(in_folder(listed.file).c_str()) != 0 && errno != ENOENT) continue;
    bytes_ -= listed.bytes;
    forget(listed.file);
  }
  return bytes_ <= most_bytes_ - bytes;
}

bool TierFolder::write(const StagedBlock* blocks, size_t count) {
  const std::vector<uint8_t> header = tier_header(layout_, blocks, count);
  auto bytes = static_cast<int64_t>(header.size());
  for (size_t i = 0; i < count; ++i) bytes += blocks[i].bytes;
  const std::string file = to_hex(header.data() + header.size() - sizeof(Digest), 16) + kSuffix;
  // Unlike that of any other cache, of this process or another.
  const std::string other = in_folder(file + "." + std::to_string(getpid()) + "." +
                                      std::to_string(reinterpret_cast<uintptr_t>(this)) + kUnfinished);
  make_folders(path_);
  if (!make_room(bytes)) return false;
  File out(other, O_WRONLY | O_CREAT | O_TRUNC);
  if (!out.is_open()) return false;
  bool whole = out.write_all(header.data(), static_cast<int64_t>(header.size()));
  for (size_t i = 0; i < count && whole; ++i) whole = out.write_all(blocks[i].data.get(), blocks[i].bytes);
  if (!out.close_now() || !whole || rename(other.c_str(), in_folder(file).c_str()) != 0) {
    unlink(other.c_str());
    return false;
  }
  bytes_ += bytes;
  bad_.erase(file);
  learn(file, bytes);
  return true;
}

bool TierFolder::read(const BlockName& name, uint8_t* out) {
  const auto found = index_.find(name);
  if (found == index_.end()) return false;
  const Place place = found->second;
  const int64_t bytes = layout_.block_bytes[static_cast<size_t>(name.group)];
  const File in(in_folder(place.file), O_RDONLY | O_NONBLOCK);
  if (!in.is_open()) {
    forget(place.file);  // removed by another process
    return false;
  }
  if (!in.read_at(place.offset, out, bytes) || sha256(out, static_cast<size_t>(bytes)) != place.digest) {
    discard(place.file);
    return false;
  }
  if (used_.empty() || used_.back() != place.file) used_.push_back(place.file);
  return true;
}

void TierFolder::mark_used() {
  int64_t time = now_ns();
  for (auto file = used_.rbegin(); file != used_.rend(); ++file, time += 1000) {
    const timespec when = {static_cast<time_t>(time / kSecond), static_cast<long>(time % kSecond)};
    const timespec times[2] = {when, when};
    utimensat(AT_FDCWD, in_folder(*file).c_str(), times, AT_SYMLINK_NOFOLLOW);
  }
  used_.clear();
}

}  // namespace dhlo::serve
