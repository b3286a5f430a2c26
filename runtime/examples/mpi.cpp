// A C++ host of several processes: a communicator over MPI.
//
//   mpiexec -n 2 host_mpi FOLDER ROWS...
//
// Process r loads FOLDER/rank<r>.so, whose inputs are all float32 with one size that differs from call to call, which
// ROWS give. Inputs are fractions, other ones in each process; the sum of each output's elements is printed by process
// 0.
#include <mpi.h>

#include <climits>
#include <cstdio>
#include <cstring>
#include <list>
#include <string>
#include <thread>
#include <vector>

#include "dhlo/runtime.hpp"

namespace {

// The processes of MPI_COMM_WORLD, for groups of any name. MPI can't take an operation back, so these have memory of
// their own, which stays until they end: a run that is told to stop leaves at once.
class MpiCommunicator {
 public:
  MpiCommunicator() {
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    dhlo_communicator_init(&hooks_);
    hooks_.ctx = this;
    hooks_.find_group = [](void* ctx, const char*, int64_t* size, int64_t* rank) -> int32_t {
      *size = static_cast<MpiCommunicator*>(ctx)->size_;
      *rank = static_cast<MpiCommunicator*>(ctx)->rank_;
      return 0;
    };
    hooks_.all_reduce = hooks_.all_gather = hooks_.reduce_scatter = hooks_.all_to_all = hooks_.broadcast =
        [](void* ctx, const dhlo_collective* what) { return static_cast<MpiCommunicator*>(ctx)->run(*what); };
  }
  const dhlo_communicator* hooks() const { return &hooks_; }
  int rank() const { return rank_; }

 private:
  struct Operation {
    MPI_Request request = MPI_REQUEST_NULL;
    std::vector<char> input, output;
    std::vector<int> counts[2], offsets[2];  // in bytes: what goes to each process, and what comes from it
  };

  static MPI_Datatype type_of(int32_t dtype) {
    switch (dtype) {
      case DHLO_F32: return MPI_FLOAT;
      case DHLO_F64: return MPI_DOUBLE;
      case DHLO_I64: return MPI_INT64_T;
      case DHLO_I32: return MPI_INT32_T;
      case DHLO_I16: return MPI_INT16_T;
      case DHLO_I8: return MPI_INT8_T;
      case DHLO_U8: return MPI_UINT8_T;
      default: return MPI_DATATYPE_NULL;  // f16 and bf16 would take reductions of our own
    }
  }

  // Nonzero if MPI has no such operation, failed, or the run is to stop.
  int32_t run(const dhlo_collective& what) {
    const int64_t bytes = dhlo_dtype_bytes(what.dtype);
    if (std::max(what.input_count, what.output_count) * bytes > INT_MAX) return 1;
    pending_.remove_if([](Operation& earlier) {
      int done = 0;
      MPI_Test(&earlier.request, &done, MPI_STATUS_IGNORE);
      return done != 0;
    });
    Operation& mine = pending_.emplace_back();
    const auto* from = static_cast<const char*>(what.input);
    mine.input.assign(from, from + what.input_count * bytes);
    mine.output.resize(static_cast<size_t>(what.output_count * bytes));
    if (start(what, mine, static_cast<int>(bytes)) != MPI_SUCCESS) {
      pending_.pop_back();
      return 1;
    }
    for (int done = 0; done == 0;) {
      if (MPI_Test(&mine.request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) return 1;
      if (done == 0 && what.stopped(what.run) != 0) return 1;
      if (done == 0) std::this_thread::yield();
    }
    if (!mine.output.empty()) std::memcpy(what.output, mine.output.data(), mine.output.size());
    pending_.pop_back();
    return 0;
  }

  static int start(const dhlo_collective& what, Operation& mine, int bytes) {
    static const MPI_Op reductions[] = {MPI_SUM, MPI_PROD, MPI_MAX, MPI_MIN};
    const MPI_Datatype type = type_of(what.dtype);
    const int in_count = static_cast<int>(what.input_count), out_count = static_cast<int>(what.output_count);
    if (what.reduction >= 0 && type == MPI_DATATYPE_NULL) return MPI_ERR_TYPE;
    switch (what.kind) {
      case DHLO_ALL_REDUCE:
        return MPI_Iallreduce(mine.input.data(), mine.output.data(), in_count, type, reductions[what.reduction],
                              MPI_COMM_WORLD, &mine.request);
      case DHLO_REDUCE_SCATTER:
        return MPI_Ireduce_scatter_block(mine.input.data(), mine.output.data(), out_count, type,
                                         reductions[what.reduction], MPI_COMM_WORLD, &mine.request);
      case DHLO_ALL_GATHER:
        return MPI_Iallgather(mine.input.data(), in_count * bytes, MPI_BYTE, mine.output.data(), in_count * bytes,
                              MPI_BYTE, MPI_COMM_WORLD, &mine.request);
      case DHLO_BROADCAST:
        mine.output = mine.input;
        return MPI_Ibcast(mine.output.data(), out_count * bytes, MPI_BYTE, static_cast<int>(what.root), MPI_COMM_WORLD,
                          &mine.request);
      case DHLO_ALL_TO_ALL:
        for (int side = 0; side < 2; ++side) {
          int offset = 0;
          for (int64_t p = 0; p < what.group_size; ++p) {
            mine.counts[side].push_back(static_cast<int>((side == 0 ? what.sends : what.receives)[p]) * bytes);
            mine.offsets[side].push_back(offset);
            offset += mine.counts[side].back();
          }
        }
        return MPI_Ialltoallv(mine.input.data(), mine.counts[0].data(), mine.offsets[0].data(), MPI_BYTE,
                              mine.output.data(), mine.counts[1].data(), mine.offsets[1].data(), MPI_BYTE,
                              MPI_COMM_WORLD, &mine.request);
      default: return MPI_ERR_OP;
    }
  }

  dhlo_communicator hooks_{};
  int size_ = 1, rank_ = 0;
  std::list<Operation> pending_;
};

void run(const std::string& folder, const std::vector<int64_t>& rows) {
  MpiCommunicator communicator;
  const dhlo::Model model = dhlo::Model::load(folder + "/rank" + std::to_string(communicator.rank()) + ".so");
  dhlo_session_options options;
  dhlo_session_options_init(&options);
  options.communicator = communicator.hooks();
  dhlo::Session session(model, &options);
  for (const int64_t n : rows) {
    std::vector<std::vector<float>> data;
    std::vector<dhlo::Tensor> inputs;
    for (int64_t i = 0; i < dhlo_model_num_inputs(model.get()); ++i) {
      const dhlo_abi_value& value = *dhlo_model_input(model.get(), i);
      std::vector<int64_t> sizes(value.sizes, value.sizes + value.rank);
      int64_t count = 1;
      for (int64_t& size : sizes) count *= size = size < 0 ? n : size;
      data.emplace_back(static_cast<size_t>(count));
      for (int64_t k = 0; k < count; ++k)
        data.back()[static_cast<size_t>(k)] = static_cast<float>((k + 3 * communicator.rank()) % 17 - 8) / 8.0f;
      inputs.push_back(dhlo::Tensor::of(data.back().data(), sizes));
    }
    session.run(inputs);
    for (int64_t j = 0; communicator.rank() == 0 && j < dhlo_model_num_outputs(model.get()); ++j) {
      const dhlo::Tensor output = session.output(j);
      double sum = 0;
      for (int64_t k = 0; k < output.elements(); ++k) sum += output.data<float>()[k];
      std::printf("%g\n", sum);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  // Operations are called on the thread that runs the session, which is this one.
  MPI_Init(&argc, &argv);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  try {
    std::vector<int64_t> rows;
    for (int i = 2; i < argc; ++i) rows.push_back(std::stoll(argv[i]));
    if (argc < 3) throw std::invalid_argument("usage: mpiexec -n 2 host_mpi FOLDER ROWS...");
    run(argv[1], rows);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
  return 0;
}
