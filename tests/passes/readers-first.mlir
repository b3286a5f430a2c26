!s = tensor<8xf32>
!n = tensor<?xf32, #dhlo.shape<["n"]>>
!i = tensor<?xi64, #dhlo.shape<["n"]>>
module attributes {dhlo.symbols = {n = [1, 6]}} {
  // The sum reads what the scatter overwrites, and comes first.
  func.func @main(%a: !s, %x: !n, %at: !i) -> (!s {dhlo.argument = 0 : i64}, tensor<f32>) {
    %new = "dhlo.group"() ({
      %p = "dhlo.scatter"(%a, %at, %x) {dims = [0], at = 0 : i64, how = "set", wrap = true} : (!s, !i, !n) -> !s
      "dhlo.yield"(%p) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (!s) -> ()
    }) {anchor = "opaque", resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : () -> !s
    %sum = "dhlo.group"() ({
      %r = "dhlo.reduce"(%a) {dims = [0], how = "sum"} : (!s) -> tensor<f32>
      "dhlo.yield"(%r) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<f32>) -> ()
    }) {anchor = "reduction", resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : () -> tensor<f32>
    return %new, %sum : !s, tensor<f32>
  }
}
