!x = tensor<?x64xf32, #dhlo.shape<["n", "64"]>>
!y = tensor<?x32xf32, #dhlo.shape<["n", "32"]>>
!i = tensor<?xi64, #dhlo.shape<["m"]>>
!l = tensor<?x64xf32, #dhlo.shape<["m", "64"]>>
// One constant in a format by its name, one in that of all others, which a lookup reads, too; one is left as it is.
module attributes {dhlo.weights = [["default", "int8"], ["up*", "bf16"], ["head", "f32"]]} {
  func.func @main(%x: !x, %i: !i) -> (!y, !y, !y, !l) {
    %e = "dhlo.weight"() {name_ = "embedding"} : () -> tensor<32x64xf32>
    %et = "dhlo.transpose"(%e) {perm = [1, 0]} : (tensor<32x64xf32>) -> tensor<64x32xf32>
    %a = "dhlo.matmul"(%x, %et) : (!x, tensor<64x32xf32>) -> !y
    %l = "dhlo.take"(%e, %i) {dims = [0], at = 0 : i64, wrap = false} : (tensor<32x64xf32>, !i) -> !l
    %u = "dhlo.weight"() {name_ = "up.weight"} : () -> tensor<64x32xf32>
    %b = "dhlo.matmul"(%x, %u) : (!x, tensor<64x32xf32>) -> !y
    %h = "dhlo.weight"() {name_ = "head"} : () -> tensor<64x32xf32>
    %c = "dhlo.matmul"(%x, %h) : (!x, tensor<64x32xf32>) -> !y
    return %a, %b, %c, %l : !y, !y, !y, !l
  }
}
