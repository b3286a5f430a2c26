// A C++ host: loads a model file and runs it at any number of shapes, linking the runtime only.
//
//   host_cpp model.so [--out DIR] SHAPE...
//
// A SHAPE gives the sizes of every input, joined by commas: "1x7" (used for all inputs), or "1x7,1x7,scalar". An input
// followed by "=FILE" is read from a raw binary file; the others are generated: 0, 1, 2, ... modulo 10 for integers,
// true for bool, and fractions for floats. With --out, output j of shape i is written raw to DIR/i_j.bin.
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "dhlo/runtime.hpp"

namespace {

struct Input {
  std::vector<int64_t> sizes;
  std::vector<char> bytes;
};

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

std::vector<int64_t> parse_sizes(const std::string& text) {
  std::vector<int64_t> sizes;
  if (text == "scalar") return sizes;
  for (const std::string& size : split(text, 'x')) {
    size_t used = 0;
    sizes.push_back(std::stoll(size, &used));
    if (used != size.size() || sizes.back() < 0) throw std::invalid_argument("not a shape: " + text);
  }
  return sizes;
}

template <class T>
void fill(std::vector<char>* bytes, T (*value)(int64_t)) {
  for (size_t i = 0; i < bytes->size() / sizeof(T); ++i) {
    const T element = value(static_cast<int64_t>(i));
    std::memcpy(bytes->data() + i * sizeof(T), &element, sizeof(T));
  }
}

void generate(int64_t dtype, std::vector<char>* bytes) {
  switch (dtype) {
    case DHLO_F32:
    case DHLO_C64: return fill<float>(bytes, [](int64_t i) { return static_cast<float>(i % 17 - 8) / 8.0f; });
    case DHLO_F64:
    case DHLO_C128: return fill<double>(bytes, [](int64_t i) { return static_cast<double>(i % 17 - 8) / 8.0; });
    case DHLO_U64:
    case DHLO_I64: return fill<int64_t>(bytes, [](int64_t i) { return i % 10; });
    case DHLO_I32: return fill<int32_t>(bytes, [](int64_t i) { return static_cast<int32_t>(i % 10); });
    case DHLO_I16: return fill<int16_t>(bytes, [](int64_t i) { return static_cast<int16_t>(i % 10); });
    case DHLO_I8:
    case DHLO_U8: return fill<char>(bytes, [](int64_t i) { return static_cast<char>(i % 10); });
    case DHLO_BOOL: return fill<char>(bytes, [](int64_t) { return char{1}; });
    case DHLO_F8E4M3FN: return fill<char>(bytes, [](int64_t i) { return i % 2 ? char{0x38} : char{0x30}; });  // 1, 0.5
    case DHLO_F8E5M2: return fill<char>(bytes, [](int64_t i) { return i % 2 ? char{0x3c} : char{0x38}; });    // 1, 0.5
    case DHLO_F16:
    case DHLO_C32:
      return fill<uint16_t>(bytes,
                            [](int64_t i) { return static_cast<uint16_t>(i % 2 ? 0x3c00 : 0xb800); });  // 1, -0.5
    case DHLO_BF16:
      return fill<uint16_t>(bytes,
                            [](int64_t i) { return static_cast<uint16_t>(i % 2 ? 0x3f80 : 0xbf00); });  // 1, -0.5
    default: return;
  }
}

Input make_input(const dhlo_abi_value& value, const std::string& text) {
  const size_t equals = text.find('=');
  Input input{parse_sizes(text.substr(0, equals)), {}};
  const int64_t bytes = dhlo::Tensor(nullptr, static_cast<int32_t>(value.dtype), input.sizes).bytes();
  input.bytes.resize(static_cast<size_t>(bytes));
  if (equals == std::string::npos) {
    generate(value.dtype, &input.bytes);
    return input;
  }
  const std::string path = text.substr(equals + 1);
  std::ifstream file(path, std::ios::binary);
  if (!file.read(input.bytes.data(), bytes) || file.peek() != std::ifstream::traits_type::eof())
    throw std::runtime_error(path + ": expected exactly " + std::to_string(bytes) + " bytes");
  return input;
}

void report(int64_t index, const dhlo_abi_value& value, const dhlo::Tensor& output) {
  std::printf("  output %lld %s %s [", static_cast<long long>(index), value.name, dhlo_dtype_name(output.dtype()));
  for (size_t dim = 0; dim < output.sizes().size(); ++dim)
    std::printf("%s%lld", dim ? ", " : "", static_cast<long long>(output.sizes()[dim]));
  std::printf("]");
  for (int64_t i = 0; i < output.elements() && i < 4; ++i) {
    if (output.dtype() == DHLO_F32) std::printf(" %g", static_cast<double>(output.data<float>()[i]));
    if (output.dtype() == DHLO_I64) std::printf(" %lld", static_cast<long long>(output.data<int64_t>()[i]));
  }
  std::printf("\n");
}

void run_shape(dhlo::Session* session, const dhlo::Model& model, const std::string& shape, int number,
               const std::string& directory) {
  std::vector<std::string> texts = split(shape, ',');
  if (texts.size() == 1) texts.resize(static_cast<size_t>(model.num_inputs()), texts[0]);
  if (texts.size() != static_cast<size_t>(model.num_inputs()))
    throw std::invalid_argument("the model has " + std::to_string(model.num_inputs()) + " inputs: " + shape);
  std::vector<Input> inputs;
  std::vector<dhlo::Tensor> tensors;
  for (size_t i = 0; i < texts.size(); ++i)
    inputs.push_back(make_input(model.input(static_cast<int64_t>(i)), texts[i]));
  for (size_t i = 0; i < texts.size(); ++i)
    tensors.emplace_back(inputs[i].bytes.data(), static_cast<int32_t>(model.input(static_cast<int64_t>(i)).dtype),
                         inputs[i].sizes);
  session->run(tensors);
  for (size_t i = 0; i < texts.size(); ++i)
    std::printf("%s%s", i ? "," : "", texts[i].substr(0, texts[i].find('=')).c_str());
  std::printf("\n");
  for (int64_t j = 0; j < model.num_outputs(); ++j) {
    const dhlo::Tensor output = session->output(j);
    report(j, model.output(j), output);
    if (directory.empty()) continue;
    std::ofstream file(directory + "/" + std::to_string(number) + "_" + std::to_string(j) + ".bin", std::ios::binary);
    if (!file.write(static_cast<const char*>(output.raw()), output.bytes()))
      throw std::runtime_error(directory + ": cannot be written");
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::string directory;
  std::vector<std::string> words(argv + 1, argv + argc);
  for (size_t i = 0; i + 1 < words.size(); ++i) {
    if (words[i] != "--out") continue;
    directory = words[i + 1];
    words.erase(words.begin() + static_cast<std::ptrdiff_t>(i), words.begin() + static_cast<std::ptrdiff_t>(i) + 2);
    break;
  }
  if (words.size() < 2) {
    std::fprintf(stderr, "usage: %s model.so [--out DIR] SHAPE...\n", argv[0]);
    return 2;
  }
  try {
    const dhlo::Model model = dhlo::Model::load(words[0]);
    dhlo::Session session(model);
    for (size_t i = 1; i < words.size(); ++i) run_shape(&session, model, words[i], static_cast<int>(i) - 1, directory);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
  return 0;
}
