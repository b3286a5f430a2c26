module {
  func.func @main(%arg0: tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>, %arg1: tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>, %arg2: tensor<4x4x1x1xf32>) -> (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>, tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>, tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>, tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>, tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>) {
    %0 = "dhlo.full"() {value = "0.0"} : () -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>
    %1 = "dhlo.convert"(%arg0) : (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>) -> tensor<?x4x?x?xbf16, #dhlo.shape<["n", "4", "m", "m"]>>
    %2 = "dhlo.convert"(%1) : (tensor<?x4x?x?xbf16, #dhlo.shape<["n", "4", "m", "m"]>>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>
    %3 = "dhlo.maximum"(%2, %0) : (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>, tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>
    %4 = "dhlo.convert"(%3) : (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>) -> tensor<?x4x?x?xbf16, #dhlo.shape<["n", "4", "m", "m"]>>
    %5 = "dhlo.convert"(%4) : (tensor<?x4x?x?xbf16, #dhlo.shape<["n", "4", "m", "m"]>>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>
    %6 = "dhlo.convert"(%arg1) : (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>) -> tensor<?x4x?x?xf16, #dhlo.shape<["n", "4", "m", "m"]>>
    %7 = "dhlo.convert"(%6) : (tensor<?x4x?x?xf16, #dhlo.shape<["n", "4", "m", "m"]>>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>
    %8 = "dhlo.neg"(%7) : (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>
    %9 = "dhlo.convert"(%8) : (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>) -> tensor<?x4x?x?xf16, #dhlo.shape<["n", "4", "m", "m"]>>
    %10 = "dhlo.convert"(%9) : (tensor<?x4x?x?xf16, #dhlo.shape<["n", "4", "m", "m"]>>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>
    %11 = "dhlo.add"(%5, %5) : (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>, tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>
    %12 = "dhlo.conv"(%5, %arg2) {dilation = [1, 1], groups = 1 : i64, output_padding = [0, 0], padding = [0, 0], stride = [1, 1], transposed = false} : (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>, tensor<4x4x1x1xf32>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>
    %13 = "dhlo.conv"(%10, %arg2) {dilation = [1, 1], groups = 1 : i64, output_padding = [0, 0], padding = [0, 0], stride = [1, 1], transposed = false} : (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>, tensor<4x4x1x1xf32>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>
    %14 = "dhlo.conv"(%11, %arg2) {dilation = [1, 1], groups = 1 : i64, output_padding = [0, 0], padding = [0, 0], stride = [1, 1], transposed = false} : (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>, tensor<4x4x1x1xf32>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>
    %15 = "dhlo.conv"(%2, %arg2) {dilation = [1, 1], groups = 1 : i64, output_padding = [0, 0], padding = [0, 0], stride = [1, 1], transposed = false} : (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>, tensor<4x4x1x1xf32>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>
    return %12, %13, %14, %15, %5 : tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>, tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>, tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>, tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>, tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>
  }
}
