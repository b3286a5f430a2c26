module attributes {dhlo.symbols = {n = [1, 6]}} {
  func.func @main(%arg0: tensor<2x8x3xf32>, %arg1: tensor<2x8x3xf32>, %arg2: tensor<?x3xf32, #dhlo.shape<["n", "3"]>>, %arg3: tensor<?xi64, #dhlo.shape<["n"]>>) -> (tensor<2x8x3xf32> {dhlo.argument = 0 : i64}, tensor<2x8x3xf32> {dhlo.argument = 1 : i64}, tensor<2x8x3xf32>) {
    %0 = "dhlo.slice"(%arg0) {starts = ["1", "0", "0"], steps = [1, 1, 1]} : (tensor<2x8x3xf32>) -> tensor<1x8x3xf32>
    %1 = "dhlo.reshape"(%arg2) : (tensor<?x3xf32, #dhlo.shape<["n", "3"]>>) -> tensor<1x?x3xf32, #dhlo.shape<["1", "n", "3"]>>
    %2 = "dhlo.update_slice"(%arg0, %1) {starts = ["1", "2", "0"]} : (tensor<2x8x3xf32>, tensor<1x?x3xf32, #dhlo.shape<["1", "n", "3"]>>) -> tensor<2x8x3xf32>
    %3 = "dhlo.slice"(%arg1) {starts = ["1", "0", "0"], steps = [1, 1, 1]} : (tensor<2x8x3xf32>) -> tensor<1x8x3xf32>
    %4 = "dhlo.full"() {value = "0"} : () -> tensor<?xi64, #dhlo.shape<["n"]>>
    %5 = "dhlo.scatter"(%arg1, %arg3, %4, %arg2) {at = 0 : i64, dims = [1, 0], how = "set", wrap = true} : (tensor<2x8x3xf32>, tensor<?xi64, #dhlo.shape<["n"]>>, tensor<?xi64, #dhlo.shape<["n"]>>, tensor<?x3xf32, #dhlo.shape<["n", "3"]>>) -> tensor<2x8x3xf32>
    %6 = "dhlo.concat"(%3, %0) {dim = 0 : i64} : (tensor<1x8x3xf32>, tensor<1x8x3xf32>) -> tensor<2x8x3xf32>
    return %2, %5, %6 : tensor<2x8x3xf32>, tensor<2x8x3xf32>, tensor<2x8x3xf32>
  }
}
