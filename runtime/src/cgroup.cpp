// How much processor time the control group of this process allows it.
#include "cgroup.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>

namespace dhlo {
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

struct Close {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, Close>;

// The file's text, as far as it is a few lines long; empty if it can't be read.
std::string read(const std::string& path) {
  std::string text;
  if (const File file(std::fopen(path.c_str(), "re")); file != nullptr) {
    char buffer[4096];
    for (size_t got = 0; (got = std::fread(buffer, 1, sizeof buffer, file.get())) > 0 && text.size() < (1u << 16);)
      text.append(buffer, got);
  }
  return text;
}

int64_t quotient(long long quota, long long period) {
  return quota > 0 && period > 0 ? (quota - 1) / period + 1 : kUnlimited;
}

// The quota of one group, by the files of either version in its folder.
int64_t quota_of(const std::string& folder) {
  long long quota = 0, period = 0;
  if (std::sscanf(read(folder + "/cpu.max").c_str(), "%lld %lld", &quota, &period) == 2) return quotient(quota, period);
  quota = std::strtoll(read(folder + "/cpu.cfs_quota_us").c_str(), nullptr, 10);
  period = std::strtoll(read(folder + "/cpu.cfs_period_us").c_str(), nullptr, 10);
  return quotient(quota, period);
}

// The least quota of the group at `path` under `mount` and of all around it. Inside a container the path may be that of
// the host and not exist; the mount's root is then the container's own group.
int64_t least_quota(const std::string& mount, std::string path) {
  int64_t least = kUnlimited;
  for (;;) {
    least = std::min(least, quota_of(mount + path));
    const size_t slash = path.rfind('/');
    if (path.empty() || slash == std::string::npos) return least;
    path.resize(slash);
  }
}

// A controller list such as "cpu,cpuacct" names the cpu controller.
bool names_cpu(const std::string& controllers) { return ("," + controllers + ",").find(",cpu,") != std::string::npos; }

}  // namespace

int64_t cgroup_processors(const char* groups, const char* root) {
  int64_t least = kUnlimited;
  const std::string text = read(groups);
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);  // hierarchy:controllers:path
    begin = end + 1;
    const size_t first = line.find(':'), second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1), path = line.substr(second + 1);
    if (controllers.empty())
      least = std::min(least, least_quota(root, path));
    else if (names_cpu(controllers))
      least = std::min({least, least_quota(std::string(root) + "/" + controllers, path),
                        least_quota(std::string(root) + "/cpu", path)});
  }
  return least;
}

}  // namespace dhlo
