/* Two models linked into one binary, which needs no file: C, or C++ without exceptions.
 *
 *   dhlo compile encoder.pt2 --emit archive --symbol encoder -o libencoder.a --header encoder.h
 *   dhlo compile decoder.pt2 --emit archive --symbol decoder -o libdecoder.a --header decoder.h
 *   cc two_models.c libencoder.a libdecoder.a $(pkg-config --cflags --libs dhlo-static) -o two_models
 *
 * The encoder maps x of [rows, 6] to codes of [rows, 3], which the decoder takes; results bear the names of the
 * operators that make them, tanh and linear. Prints what comes out for ROWS rows of 0, 1, 2, ...
 */
#include <stdio.h>
#include <stdlib.h>

#include "decoder.h"
#include "encoder.h"

static int report(const char* what, const char* text) {
  fprintf(stderr, "error: %s: %s\n", what, text);
  return 1;
}

static int run(dhlo_session* encoder, dhlo_session* decoder, const float* x, int64_t rows) {
  encoder_inputs in = {{x, {rows, 6}, NULL}};
  encoder_outputs codes;
  decoder_inputs next;
  decoder_outputs out;
  int64_t i;
  if (encoder_run(encoder, &in, &codes) != DHLO_OK) return report("encoder", dhlo_session_error(encoder));
  next.codes.data = codes.tanh.data;
  next.codes.sizes[0] = codes.tanh.sizes[0];
  next.codes.sizes[1] = codes.tanh.sizes[1];
  next.codes.strides = NULL;
  if (decoder_run(decoder, &next, &out) != DHLO_OK) return report("decoder", dhlo_session_error(decoder));
  for (i = 0; i < out.linear.sizes[0] * out.linear.sizes[1]; ++i) printf("%.9g\n", (double)out.linear.data[i]);
  return 0;
}

int main(int argc, char** argv) {
  const int64_t rows = argc == 2 ? strtoll(argv[1], NULL, 10) : -1;
  dhlo_model *encoder = NULL, *decoder = NULL;
  dhlo_session *first = NULL, *second = NULL;
  float* x = rows >= 0 && rows < 1000000 ? (float*)calloc((size_t)(rows * 6 + 1), sizeof *x) : NULL;
  int64_t i;
  int failed;
  if (x == NULL) {
    fprintf(stderr, "usage: two_models ROWS\n");
    return 2;
  }
  for (i = 0; i < rows * 6; ++i) x[i] = (float)i;
  if (encoder_load(NULL, &encoder) != DHLO_OK || decoder_load(NULL, &decoder) != DHLO_OK ||
      dhlo_session_create(encoder, NULL, &first) != DHLO_OK || dhlo_session_create(decoder, NULL, &second) != DHLO_OK)
    failed = report("loading", dhlo_last_error());
  else
    failed = run(first, second, x, rows);
  free(x);
  dhlo_session_destroy(first);
  dhlo_session_destroy(second);
  dhlo_model_release(encoder);
  dhlo_model_release(decoder);
  return failed;
}
