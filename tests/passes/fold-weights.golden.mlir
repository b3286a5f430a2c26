module {
  func.func @main(%arg0: tensor<?x3x?x?xf32, #dhlo.shape<["n", "3", "h + 2", "w + 2"]>>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "h", "w"]>> {
    %0 = "dhlo.weight"() {name_ = "conv"} : () -> tensor<4x3x3x3xf32>
    %1 = "dhlo.weight"() {name_ = "gain"} : () -> tensor<4xf32>
    %2 = "dhlo.weight"() {name_ = "var"} : () -> tensor<4xf32>
    %3 = "dhlo.full"() {value = "0.001"} : () -> tensor<4xf32>
    %4 = "dhlo.weight"() {name_ = "folded.3"} : () -> tensor<4xf32>
    %5 = "dhlo.weight"() {name_ = "folded.4"} : () -> tensor<4xf32>
    %6 = "dhlo.weight"() {name_ = "folded.5"} : () -> tensor<4xf32>
    %7 = "dhlo.weight"() {name_ = "folded.6"} : () -> tensor<4xf32>
    %8 = "dhlo.broadcast"(%7) {dims = [0]} : (tensor<4xf32>) -> tensor<4x3x3x3xf32>
    %9 = "dhlo.weight"() {name_ = "folded.7"} : () -> tensor<4x3x3x3xf32>
    %10 = "dhlo.conv"(%arg0, %9) {dilation = [1, 1], groups = 1 : i64, output_padding = [0, 0], padding = [0, 0], stride = [1, 1], transposed = false} : (tensor<?x3x?x?xf32, #dhlo.shape<["n", "3", "h + 2", "w + 2"]>>, tensor<4x3x3x3xf32>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "h", "w"]>>
    %11 = "dhlo.broadcast"(%7) {dims = [1]} : (tensor<4xf32>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "h", "w"]>>
    return %10 : tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "h", "w"]>>
  }
}
