module {
  func.func @main(%arg0: tensor<?x4x?x?xbf16, #dhlo.shape<["n", "4", "m", "m"]>>, %arg1: tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>) -> (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>, tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>) {
    %0 = "dhlo.weight"() {name_ = "w"} : () -> tensor<4x4x1x1xbf16>
    %1 = "dhlo.weight"() {name_ = "d"} : () -> tensor<4x1x3x3xf32>
    %2 = "dhlo.group"() ({
      %4 = "dhlo.convert"(%arg0) : (tensor<?x4x?x?xbf16, #dhlo.shape<["n", "4", "m", "m"]>>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>
      %5 = "dhlo.convert"(%0) : (tensor<4x4x1x1xbf16>) -> tensor<4x4x1x1xf32>
      %6 = "dhlo.conv"(%4, %5) {dilation = [1, 1], groups = 1 : i64, output_padding = [0, 0], padding = [0, 0], stride = [1, 1], transposed = false} : (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>, tensor<4x4x1x1xf32>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>
      %7 = "dhlo.full"() {value = "0.0"} : () -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>
      %8 = "dhlo.maximum"(%6, %7) : (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>, tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>
      %9 = "dhlo.conv"(%8, %1) {dilation = [1, 1], groups = 4 : i64, output_padding = [0, 0], padding = [1, 1], stride = [1, 1], transposed = false} : (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>, tensor<4x1x3x3xf32>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>
      "dhlo.yield"(%9) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>) -> ()
    }) {anchor = "convolution", resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : () -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>
    %3 = "dhlo.group"() ({
      %4 = "dhlo.convert"(%0) : (tensor<4x4x1x1xbf16>) -> tensor<4x4x1x1xf32>
      %5 = "dhlo.conv"(%arg1, %4) {dilation = [1, 1], groups = 1 : i64, output_padding = [0, 0], padding = [0, 0], stride = [1, 1], transposed = false} : (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>, tensor<4x4x1x1xf32>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>
      %6 = "dhlo.convert"(%5) : (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>) -> tensor<?x4x?x?xbf16, #dhlo.shape<["n", "4", "m", "m"]>>
      %7 = "dhlo.convert"(%6) : (tensor<?x4x?x?xbf16, #dhlo.shape<["n", "4", "m", "m"]>>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>
      %8 = "dhlo.conv"(%7, %1) {dilation = [1, 1], groups = 4 : i64, output_padding = [0, 0], padding = [1, 1], stride = [1, 1], transposed = false} : (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>, tensor<4x1x3x3xf32>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>
      "dhlo.yield"(%8) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>) -> ()
    }) {anchor = "convolution", resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : () -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>
    return %2, %3 : tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>, tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>
  }
}
