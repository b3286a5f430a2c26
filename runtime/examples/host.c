/* The smallest C host: runs a model with one float32 vector as its input and prints the first output.
 *
 *   host_c model.so LENGTH
 */
#include <stdio.h>
#include <stdlib.h>

#include "dhlo/runtime.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: %s model.so LENGTH\n", argv[0]);
    return 2;
  }
  dhlo_model* model = NULL;
  dhlo_session* session = NULL;
  if (dhlo_model_load_file(argv[1], NULL, &model) != DHLO_OK || dhlo_session_create(model, NULL, &session) != DHLO_OK) {
    fprintf(stderr, "error: %s\n", dhlo_last_error());
    dhlo_model_release(model);
    return 1;
  }
  const int64_t length = strtoll(argv[2], NULL, 10);
  float* data = calloc(length > 0 ? (size_t)length : 1, sizeof *data);
  const dhlo_tensor input = {.data = data, .sizes = &length, .dtype = DHLO_F32, .rank = 1};
  dhlo_tensor output;
  int failed = data == NULL || dhlo_session_run(session, &input, 1) != DHLO_OK ||
               dhlo_session_output(session, 0, &output) != DHLO_OK;
  if (failed) {
    fprintf(stderr, "error: %s\n", dhlo_session_error(session));
  } else {
    int64_t elements = 1;
    for (int32_t dim = 0; dim < output.rank; ++dim) elements *= output.sizes[dim];
    for (int64_t i = 0; i < elements && output.dtype == DHLO_F32; ++i)
      printf("%g\n", (double)((const float*)output.data)[i]);
  }
  free(data);
  dhlo_session_destroy(session);
  dhlo_model_release(model);
  return failed;
}
