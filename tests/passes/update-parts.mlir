!s = tensor<2x8x3xf32>
!n = tensor<?x3xf32, #dhlo.shape<["n", "3"]>>
!i = tensor<?xi64, #dhlo.shape<["n"]>>
module attributes {dhlo.symbols = {n = [1, 6]}} {
  // Rows 2.. of element 1 of %a, and rows of element 0 of %b by index, are new: only they are written. %c isn't the content of a state.
  func.func @main(%a: !s, %b: !s, %x: !n, %at: !i) -> (!s {dhlo.argument = 0 : i64}, !s {dhlo.argument = 1 : i64}, !s) {
    %a0 = "dhlo.slice"(%a) {starts = ["0", "0", "0"], steps = [1, 1, 1]} : (!s) -> tensor<1x8x3xf32>
    %a1 = "dhlo.slice"(%a) {starts = ["1", "0", "0"], steps = [1, 1, 1]} : (!s) -> tensor<1x8x3xf32>
    %e1 = "dhlo.reshape"(%a1) : (tensor<1x8x3xf32>) -> tensor<8x3xf32>
    %low = "dhlo.slice"(%e1) {starts = ["0", "0"], steps = [1, 1]} : (tensor<8x3xf32>) -> tensor<2x3xf32>
    %high = "dhlo.slice"(%e1) {starts = ["n + 2", "0"], steps = [1, 1]} : (tensor<8x3xf32>) -> tensor<?x3xf32, #dhlo.shape<["6 - n", "3"]>>
    %new = "dhlo.concat"(%low, %x, %high) {dim = 0 : i64} : (tensor<2x3xf32>, !n, tensor<?x3xf32, #dhlo.shape<["6 - n", "3"]>>) -> tensor<8x3xf32>
    %row = "dhlo.reshape"(%new) : (tensor<8x3xf32>) -> tensor<1x8x3xf32>
    %a2 = "dhlo.concat"(%a0, %row) {dim = 0 : i64} : (tensor<1x8x3xf32>, tensor<1x8x3xf32>) -> !s
    %b0 = "dhlo.slice"(%b) {starts = ["0", "0", "0"], steps = [1, 1, 1]} : (!s) -> tensor<1x8x3xf32>
    %b1 = "dhlo.slice"(%b) {starts = ["1", "0", "0"], steps = [1, 1, 1]} : (!s) -> tensor<1x8x3xf32>
    %f0 = "dhlo.reshape"(%b0) : (tensor<1x8x3xf32>) -> tensor<8x3xf32>
    %put = "dhlo.scatter"(%f0, %at, %x) {dims = [0], at = 0 : i64, how = "set", wrap = true} : (tensor<8x3xf32>, !i, !n) -> tensor<8x3xf32>
    %g0 = "dhlo.reshape"(%put) : (tensor<8x3xf32>) -> tensor<1x8x3xf32>
    %b2 = "dhlo.concat"(%g0, %b1) {dim = 0 : i64} : (tensor<1x8x3xf32>, tensor<1x8x3xf32>) -> !s
    %c = "dhlo.concat"(%b1, %a1) {dim = 0 : i64} : (tensor<1x8x3xf32>, tensor<1x8x3xf32>) -> !s
    return %a2, %b2, %c : !s, !s, !s
  }
}
